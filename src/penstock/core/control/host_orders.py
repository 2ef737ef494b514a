"""What the driver tells a host: imperative, one frozen type for each thing to do.

Orders to one host arrive in the order in which they were given, and are carried out in its loop
between two steps of its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.causal.clocks import Position
from penstock.core.causal.reports import Start
from penstock.core.control.assignment import Assignment, PlanOrders, UnitProgress
from penstock.core.control.deadly_rows import Care
from penstock.core.delivery.ids import Role
from penstock.core.delivery.routing import Seat
from penstock.core.progress.deltas import FrontierChange

__all__ = [
    "AgentOrder",
    "ApplyPlan",
    "BeginRings",
    "ChangeMembers",
    "CheckpointNews",
    "ClosedEpoch",
    "DropMembers",
    "EdgeOpening",
    "EndHost",
    "EndStreams",
    "FenceNodes",
    "FollowCheckpoints",
    "ForgetUpTo",
    "GoOn",
    "HandOverRole",
    "HostOrder",
    "JoinRing",
    "KillHost",
    "MeetHosts",
    "MoveFrontier",
    "NodeStart",
    "OpenEdges",
    "OpenRings",
    "PlayRoles",
    "ResumeInput",
    "RewireRole",
    "RoleOrder",
    "SaveCheckpoints",
    "SayJoined",
    "SettleNodes",
    "SeverPeers",
    "SlowNodes",
    "StartNodes",
    "StartReading",
    "TakeAssignment",
    "TakeRole",
    "WatchNext",
]


# -- the life of a host ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeAssignment:
    """Prepare for the run; answer :class:`HostReady`."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class StartReading:
    """Let the sources read."""


@dataclass(frozen=True, slots=True)
class EndStreams:
    """Let the sources end their streams, those that are started later as well."""


@dataclass(frozen=True, slots=True)
class EndHost:
    """End in order."""


@dataclass(frozen=True, slots=True)
class ForgetUpTo:
    """The driver lives; what lies behind these epochs is not needed any more."""

    committed: int
    """Every sink has the epochs up to this one."""
    lows: Mapping[int, tuple[int, int]]
    """Per node: the epoch that no node connected with it goes back behind, and its own."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """The driver lives, and has heard what the host is about to do."""


@dataclass(frozen=True, slots=True)
class WatchNext:
    """Ping the next host of the ring, and report when it is silent."""

    next: int | None
    near: Mapping[int, str]
    """Addresses of the hosts before and after."""
    interval_ms: int
    timeout_ms: int


class ClosedEpoch(NamedTuple):
    """An epoch that is closed at all gates of a unit."""

    epoch: int
    watermark_us: int | None
    cut_us: int


@dataclass(frozen=True, slots=True)
class MoveFrontier:
    """The frontiers of a unit have moved."""

    unit: int
    generation: int
    sequence: int
    changes: tuple[FrontierChange, ...]
    closed: tuple[ClosedEpoch, ...]


# -- drills ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KillHost:
    """End the process at once, as a crash would."""


@dataclass(frozen=True, slots=True)
class SeverPeers:
    """Break the connections to these peers; they are made again at once."""

    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlowNodes:
    """Let nodes wait for this long after each batch."""

    delays_us: Mapping[int, int]


# -- recovery --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FenceNodes:
    """Refuse old incarnations, report what survivors know, answer :class:`HostFenced`."""

    round: int
    incarnations: Mapping[int, int]
    gone: tuple[int, ...]
    """Hosts that were lost: hear nothing more of them."""


@dataclass(frozen=True, slots=True)
class NodeStart:
    """One node to start, and from where."""

    node: int
    incarnation: int
    incarnations: Mapping[int, int]
    """Of its neighbours, and its own."""
    start: Start
    foreign: tuple[str, ...] | None
    """The stages that made the checkpoint, if the flow was another one then."""
    hold: int | None
    """Hold the input after this epoch, where the whole flow waits for checkpoints."""
    care: Care
    """What its predecessors did not survive."""


@dataclass(frozen=True, slots=True)
class StartNodes:
    """Start new incarnations of nodes; answer :class:`NodeStarted` for each."""

    nodes: tuple[NodeStart, ...]
    addresses: Mapping[int, str]
    placement: Mapping[int, int]
    progress: Mapping[int, UnitProgress]
    """Where the counts of the nodes' units begin."""


class EdgeOpening(NamedTuple):
    """An edge to open: send again after a position, then go on."""

    sender: int
    target: int
    incarnation: int
    """The target's."""
    position: Position


@dataclass(frozen=True, slots=True)
class OpenEdges:
    """Open edges whose senders are here; every host learns where all nodes are."""

    edges: tuple[EdgeOpening, ...]
    addresses: Mapping[int, str]
    placement: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SettleNodes:
    """No node is still recovering: drop what only a recovery needs."""


@dataclass(frozen=True, slots=True)
class ResumeInput:
    """Every node has its checkpoint of this epoch: go on behind it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class MeetHosts:
    """Connect to hosts that may take nodes later."""

    addresses: Mapping[int, str]


class CheckpointNews(NamedTuple):
    """The newest checkpoint of a node: which incarnation made it, its key, its state's size."""

    incarnation: int
    key: int
    size: int


@dataclass(frozen=True, slots=True)
class FollowCheckpoints:
    """Keep the states of nodes that run elsewhere in memory."""

    nodes: Mapping[int, CheckpointNews]


@dataclass(frozen=True, slots=True)
class SaveCheckpoints:
    """Save states when an epoch is complete, or now."""

    epoch: int
    now: bool
    nodes: frozenset[int] | None
    """None: all nodes with state."""


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """Put a plan into force."""

    orders: PlanOrders


# -- roles of replicated stages --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginRings:
    """Stop playing roles: everything begins anew with what follows."""

    generation: int


@dataclass(frozen=True, slots=True)
class JoinRing:
    """Be a member of a stage's ring."""

    stage: int
    seats: Mapping[Role, Seat]
    fences: Mapping[Role, int]
    members: tuple[int, ...]
    lost: frozenset[int]
    joining: bool
    """Whether the ring runs already, so that the siblings have to be asked."""
    lows: Mapping[Role, int]
    """Per source and sink: the last epoch that need not be made again for it."""


@dataclass(frozen=True, slots=True)
class SayJoined:
    """Answer :class:`RingsJoined`: the rings before this order are joined."""

    generation: int


@dataclass(frozen=True, slots=True)
class OpenRings:
    """All members of all rings are there: let the sources of roles read."""


@dataclass(frozen=True, slots=True)
class DropMembers:
    """Members are gone: hear nothing more of their hosts; answer :class:`LossHeard`."""

    members: tuple[int, ...]
    round: int


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """These are the members of a ring from now on."""

    stage: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TakeRole:
    """Play the role of a host that was lost."""

    role: Role
    incarnation: int
    fresh: bool
    low: int


@dataclass(frozen=True, slots=True)
class HandOverRole:
    """Give a role to another host."""

    role: Role
    seat: Seat


@dataclass(frozen=True, slots=True)
class RewireRole:
    """A role is played elsewhere from now on."""

    role: Role
    seat: Seat
    fence: int


RoleOrder = (
    BeginRings
    | JoinRing
    | SayJoined
    | OpenRings
    | DropMembers
    | ChangeMembers
    | TakeRole
    | HandOverRole
    | RewireRole
)


@dataclass(frozen=True, slots=True)
class PlayRoles:
    """Do these things one after another, with nothing in between."""

    orders: tuple[RoleOrder, ...]
    addresses: Mapping[int, str]


AgentOrder = (
    FenceNodes
    | StartNodes
    | OpenEdges
    | SettleNodes
    | ResumeInput
    | MeetHosts
    | FollowCheckpoints
    | SaveCheckpoints
    | ApplyPlan
    | PlayRoles
)
"""What the recovery agent of a host is told."""

HostOrder = (
    TakeAssignment
    | StartReading
    | EndStreams
    | EndHost
    | ForgetUpTo
    | GoOn
    | WatchNext
    | MoveFrontier
    | KillHost
    | SeverPeers
    | SlowNodes
    | AgentOrder
)
