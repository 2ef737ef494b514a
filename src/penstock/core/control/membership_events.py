"""What the membership machine is told, and what it asks for.

Events are facts, in the past tense.  Effects are orders; each carries the number of the event that
caused it, so that a log of events and effects reads as a story.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.control.controller import Failure
from penstock.core.control.deadly_rows import SkippedRow
from penstock.core.control.host_reports import LastWords, RefusalCounts
from penstock.core.control.suspicion import ProcessState
from penstock.core.delivery.ring import Load

__all__ = [
    "AssignHost",
    "ConnectHost",
    "ConnectionBroken",
    "CrashHost",
    "DismissHost",
    "FenceHost",
    "FollowNodes",
    "HostAssigned",
    "HostCameUp",
    "HostRaised",
    "HostRefused",
    "HostSilent",
    "HostWorking",
    "IntroduceHost",
    "JobEnded",
    "JoinReplicas",
    "LaunchHost",
    "LoadsMeasured",
    "MembershipEffect",
    "MembershipEvent",
    "MoveNodes",
    "NodesOpened",
    "NodesProgressed",
    "NoteRefused",
    "PlaceNodes",
    "ProbeHost",
    "ProcessEnded",
    "RecordSkipped",
    "RecoverNodes",
    "ReplaceReplicas",
    "SaveNodes",
    "ServeHost",
    "Situation",
    "StartAllNodes",
    "StartHost",
    "StopFollowing",
    "TellRing",
    "TimePassed",
    "Warn",
]

# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostCameUp:
    """A host's process is up."""

    host: int
    address: str
    pid: int | None


@dataclass(frozen=True)
class HostAssigned:
    """A host has its assignment and can take nodes."""

    host: int


@dataclass(frozen=True)
class NodesOpened:
    """Every edge is open and every replica has started."""


@dataclass(frozen=True)
class HostSilent:
    """A host, or the driver, got no answer from the next one in the ring."""

    by: int
    host: int
    silent_ms: int
    process: ProcessState = ProcessState.UNSEEN
    loads: Mapping[int, Load] = field(default_factory=dict)


@dataclass(frozen=True)
class HostRefused:
    """Something of a host that was declared lost was refused."""

    host: int
    counts: RefusalCounts


@dataclass(frozen=True)
class HostRaised:
    """A host's loop ended with an error; ``restarts``: its stage wants to be started again."""

    host: int
    failure: Failure
    restarts: bool


@dataclass(frozen=True)
class HostWorking:
    """A host says what it is about to do, or the last thing that it does."""

    host: int
    words: LastWords


@dataclass(frozen=True)
class LoadsMeasured:
    """How busy some hosts were."""

    loads: Mapping[int, Load]


@dataclass(frozen=True)
class NodesProgressed:
    """The last epochs that some nodes have completed."""

    epochs: Mapping[int, int]


@dataclass(frozen=True)
class ConnectionBroken:
    """A connection between a host and the driver broke."""

    host: int


@dataclass(frozen=True)
class ProcessEnded:
    """Nothing listens any more where a host did."""

    host: int


@dataclass(frozen=True)
class JobEnded:
    """The job of a slot is over, and will not be tried again."""

    slot: int
    failure: Failure | None


@dataclass(frozen=True)
class Situation:
    """How the flow is, for those who go home."""

    settled: bool
    """Whether nothing recovers and nodes may be moved."""
    ending: bool
    """Whether some node has come to its end."""
    saved: bool
    """Whether the nodes that were asked to have saved their states."""


@dataclass(frozen=True)
class TimePassed:
    """Time passed."""

    quiet: bool
    """Whether no node is still recovering."""
    situation: Situation | None = None
    """Needed when :attr:`MembershipMachine.looks_home`."""


MembershipEvent = (
    HostCameUp
    | HostAssigned
    | NodesOpened
    | HostSilent
    | HostRefused
    | HostRaised
    | HostWorking
    | LoadsMeasured
    | NodesProgressed
    | ConnectionBroken
    | ProcessEnded
    | JobEnded
    | TimePassed
)

# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LaunchHost:
    """Have the cluster manager run a host."""

    cause: int
    host: int


@dataclass(frozen=True)
class ConnectHost:
    """Open a connection to a host."""

    cause: int
    host: int
    address: str


@dataclass(frozen=True)
class AssignHost:
    """Tell a host what it must know of the run; it answers ``HostAssigned``."""

    cause: int
    host: int


@dataclass(frozen=True)
class DismissHost:
    """Tell a host to end."""

    cause: int
    host: int


@dataclass(frozen=True)
class CrashHost:
    """End a host's process by force; it may be gone already."""

    cause: int
    host: int


@dataclass(frozen=True)
class ProbeHost:
    """Find out whether a host's process is gone: then ``ProcessEnded``."""

    cause: int
    host: int
    address: str


@dataclass(frozen=True)
class FenceHost:
    """Refuse everything that comes from a host from now on."""

    cause: int
    host: int


@dataclass(frozen=True)
class NoteRefused:
    """Add to the history of a loss what was refused of the host since."""

    cause: int
    host: int
    counts: RefusalCounts


@dataclass(frozen=True)
class TellRing:
    """Tell a host, or the driver, whom to watch; ``near`` are the addresses of its neighbours."""

    cause: int
    host: int
    next: int | None
    near: Mapping[int, str]
    interval_ms: int
    timeout_ms: int


@dataclass(frozen=True)
class StartHost:
    """Tell a host that comes up late that the flow runs: its sources may read."""

    cause: int
    host: int


@dataclass(frozen=True)
class IntroduceHost:
    """Let other hosts connect to a new one, before they need to."""

    cause: int
    host: int
    address: str
    to: tuple[int, ...]


@dataclass(frozen=True)
class ServeHost:
    """Send a host that can take nodes what waited for it."""

    cause: int
    host: int


@dataclass(frozen=True)
class StartAllNodes:
    """Every host can take nodes: start them all, from what is durable."""

    cause: int


@dataclass(frozen=True)
class PlaceNodes:
    """Give the nodes of a host that was lost before any node started to another."""

    cause: int
    lost: int
    heir: int


@dataclass(frozen=True)
class RecordSkipped:
    """Make durable that a stage passes over a row, and let nodes that start know it from then."""

    cause: int
    row: SkippedRow


@dataclass(frozen=True)
class RecoverNodes:
    """Recover the nodes of a lost host where their takers are."""

    cause: int
    lost: int
    takers: Mapping[int, int]
    reason: str


@dataclass(frozen=True)
class ReplaceReplicas:
    """Let other replicas play the roles of a lost host, until its heir is ready."""

    cause: int
    lost: int
    heir: int | None
    reason: str


@dataclass(frozen=True)
class JoinReplicas:
    """Let a host that is ready play roles."""

    cause: int
    host: int


@dataclass(frozen=True)
class SaveNodes:
    """Have nodes save their states now."""

    cause: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class FollowNodes:
    """Let a host keep up with the states of some nodes; None: of all."""

    cause: int
    host: int
    nodes: tuple[int, ...] | None


@dataclass(frozen=True)
class StopFollowing:
    """Let hosts keep up with nothing any more: they have nodes of their own, or are gone."""

    cause: int
    hosts: tuple[int, ...]


@dataclass(frozen=True)
class MoveNodes:
    """Start nodes that live again on other hosts."""

    cause: int
    places: Mapping[int, int]
    reason: str


@dataclass(frozen=True)
class Warn:
    """Tell people; ``expected``: nothing is wrong, it is only worth knowing."""

    cause: int
    text: str
    expected: bool = False


MembershipEffect = (
    LaunchHost
    | ConnectHost
    | AssignHost
    | DismissHost
    | CrashHost
    | ProbeHost
    | FenceHost
    | NoteRefused
    | TellRing
    | StartHost
    | IntroduceHost
    | ServeHost
    | StartAllNodes
    | PlaceNodes
    | RecordSkipped
    | RecoverNodes
    | ReplaceReplicas
    | JoinReplicas
    | SaveNodes
    | FollowNodes
    | StopFollowing
    | MoveNodes
    | Warn
)
