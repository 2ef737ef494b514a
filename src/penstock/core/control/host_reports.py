"""What a host tells the driver: past tense, one frozen type for each thing that happened.

Reports of one host arrive in the order in which they were made.  A report about a node carries the
node's incarnation, since the driver may have given the node to another host in the meantime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.causal.reports import NodeReport
from penstock.core.control.figures import NodeFigures
from penstock.core.delivery.ids import Role
from penstock.core.delivery.ring import Load
from penstock.core.progress.deltas import Deltas

__all__ = [
    "CheckpointFollowed",
    "CheckpointRequestMet",
    "CheckpointSaved",
    "CheckpointUnreadable",
    "EdgeOpened",
    "Failure",
    "GateClosing",
    "HostBeat",
    "HostFailed",
    "HostFenced",
    "HostReady",
    "HostRegistered",
    "HostReport",
    "LastWords",
    "LossHeard",
    "MemberReady",
    "NextFellSilent",
    "NodeCaughtUp",
    "NodeContradicted",
    "NodeFinished",
    "NodeFlushed",
    "NodeRecovered",
    "NodeReported",
    "NodeStarted",
    "ParcelsMissed",
    "PeerRefused",
    "ProgressMade",
    "RecoveryReport",
    "RefusalCounts",
    "RingsBegun",
    "RingsJoined",
    "RoleRecovered",
    "RoleReport",
    "RoleTaken",
    "SinkCompleted",
    "StageCalled",
    "WriterStalled",
]


# -- the life of a host ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostRegistered:
    """A host's process is up and listens."""

    address: str
    pid: int | None
    """None: the host is a thread of the driver's process."""


@dataclass(frozen=True, slots=True)
class HostReady:
    """A host has taken its assignment."""


@dataclass(frozen=True, slots=True)
class HostBeat:
    """A host lives; these are its nodes' figures and the loads that it knows of."""

    figures: Mapping[int, NodeFigures]
    loads: Mapping[int, Load]


class Failure(NamedTuple):
    """An error, as it crosses the border of a process; see :meth:`PenstockError.to_dict`."""

    type: str
    message: str
    parameters: Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class HostFailed:
    """A host's loop has ended with an error."""

    failure: Failure


class LastWords(NamedTuple):
    """What a process is about to do that it may not survive."""

    stage: str | None = None
    """The stage that is called; None: no stage of the flow is."""
    node: str | None = None
    epoch: int = -1
    rows: str = ""
    """Which rows the call is about, for people."""
    status: int | None = None
    """The exit status, if a function is about to end the process."""
    digests: tuple[int, ...] = ()
    """The rows themselves, where the stage can pass over them."""


@dataclass(frozen=True, slots=True)
class StageCalled:
    """A host is about to call a stage, and waits until the driver has heard of it.

    Words that name no stage say that the call is over.
    """

    words: LastWords


# -- who watches whom ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NextFellSilent:
    """The next host in the ring does not answer."""

    host: int
    silent_ms: int
    loads: Mapping[int, Load]


class RefusalCounts(NamedTuple):
    """What was refused of a host that was given up."""

    messages: int = 0
    connections: int = 0
    writes: int = 0
    """Writes that the store has refused in all, as the refused host says."""


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """A host that was given up has tried to speak."""

    host: int
    counts: RefusalCounts


# -- nodes and their progress ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkCompleted:
    """An epoch is complete at one node of a sink."""

    sink: str
    node: int
    epoch: int
    cut_us: int


@dataclass(frozen=True, slots=True)
class NodeFinished:
    """A node has come to the end of all its inputs; these are the last figures of the host."""

    node: int
    figures: Mapping[int, NodeFigures]


class GateClosing(NamedTuple):
    """An epoch was closed where rows enter a loop."""

    node: int
    epoch: int
    watermark_us: int | None
    cut_us: int


@dataclass(frozen=True, slots=True)
class ProgressMade:
    """How the counts of a unit have changed on one host."""

    unit: int
    generation: int
    sequence: int
    deltas: Deltas
    gates: tuple[GateClosing, ...]


@dataclass(frozen=True, slots=True)
class WriterStalled:
    """A writer began to wait for the store, or waits no more."""

    name: str
    waiting: bool
    reason: str
    seconds: float


# -- recovery --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostFenced:
    """Every node of a host refuses the old incarnations of a fence's round."""

    round: int
    host: int


@dataclass(frozen=True, slots=True)
class NodeReported:
    """A survivor's answer to a fence."""

    node: int
    round: int
    report: NodeReport


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """A new incarnation of a node is there, and waits for its edges."""

    node: int
    incarnation: int
    followed: bool
    """Whether its state was in memory already, on a standby."""


@dataclass(frozen=True, slots=True)
class CheckpointUnreadable:
    """The checkpoint that a node was to start from cannot be read."""

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class EdgeOpened:
    """A sender has sent again what its receiver needs, and goes on."""

    sender: int
    incarnation: int
    target: int
    target_incarnation: int
    seconds: float


@dataclass(frozen=True, slots=True)
class NodeRecovered:
    """A node has repeated every step that others know of."""

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeCaughtUp:
    """A node has completed again what it had completed when it was lost."""

    node: int
    incarnation: int
    restore_s: float
    replay_s: float
    rows: int


@dataclass(frozen=True, slots=True)
class NodeContradicted:
    """A node cannot repeat what others know of it."""

    node: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeFlushed:
    """A node holds its input after an epoch, and all before it is durable."""

    node: int
    incarnation: int
    epoch: int
    waiting: int | None
    """The least epoch of what it holds, if that is known."""


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint of a node is durable."""

    node: int
    incarnation: int
    key: int
    epoch: int
    serves_from: int
    """Its log serves every child that starts at the end of this epoch or later."""
    bytes: int
    log_bytes: int
    """The part of ``bytes`` that is the log of what the node sent."""
    state_bytes: int
    """The whole state, written now or with an earlier checkpoint."""
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointRequestMet:
    """A node has the checkpoint that a person, or a move, asked for."""

    node: int
    incarnation: int
    asked: int


@dataclass(frozen=True, slots=True)
class CheckpointFollowed:
    """A standby has the state of a node's checkpoint in memory."""

    host: int
    node: int
    key: int


# -- roles of replicated stages --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RingsBegun:
    """A host plays no roles of an earlier generation any more."""

    generation: int


@dataclass(frozen=True, slots=True)
class RingsJoined:
    """A host is a member of all its rings."""

    generation: int


@dataclass(frozen=True, slots=True)
class LossHeard:
    """A host hears nothing more of members that were lost."""

    generation: int
    round: int


@dataclass(frozen=True, slots=True)
class ParcelsMissed:
    """A sink needs something that no member can send again."""

    generation: int
    node: str
    missing: str


@dataclass(frozen=True, slots=True)
class MemberReady:
    """A host knows what its siblings in a ring know."""

    generation: int
    stage: int


@dataclass(frozen=True, slots=True)
class RoleTaken:
    """A host plays a role that was given to it."""

    generation: int
    stage: int
    role: Role
    incarnation: int


@dataclass(frozen=True, slots=True)
class RoleRecovered:
    """All that the new player of a role asked for has come."""

    generation: int
    stage: int
    role: Role
    incarnation: int


RecoveryReport = (
    HostFenced
    | NodeReported
    | NodeStarted
    | CheckpointUnreadable
    | EdgeOpened
    | NodeRecovered
    | NodeCaughtUp
    | NodeContradicted
    | NodeFlushed
    | CheckpointSaved
    | CheckpointRequestMet
    | WriterStalled
)
"""What the recovery of causal nodes is told."""

RoleReport = (
    RingsBegun
    | RingsJoined
    | LossHeard
    | ParcelsMissed
    | MemberReady
    | RoleTaken
    | RoleRecovered
)  # fmt: skip
"""What the controller of the rings is told."""

HostReport = (
    HostRegistered
    | HostReady
    | HostBeat
    | HostFailed
    | StageCalled
    | NextFellSilent
    | PeerRefused
    | SinkCompleted
    | NodeFinished
    | ProgressMade
    | CheckpointFollowed
    | RecoveryReport
    | RoleReport
)
