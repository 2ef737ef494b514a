"""Regimes: how a stage survives the loss of its host, chosen stage by stage.

    counts = events.groupBy("user").count().withRegime(Lazy(every=50))
    flow.start(spark, regime=Causal())

What follows when a node of such a stage is lost:

==================== ============================== ==============================================
regime               what is kept                   what happens
==================== ============================== ==============================================
Causal               a log of what was sent, now    only the node restarts; its senders send again
                     and then the state
Lazy                 now and then the state         it works again from there; senders without a
                                                    log work again, too
Ephemeral            nothing                        its senders send or work again; never state
Batch                what it made                   the epochs under way are worked on again
Eager                state and output, every epoch  nothing is worked on again
GlobalCheckpoint     every node's state, at once    the whole flow goes back
Replicated           what was sent, until others    another replica takes over, and asks for what
                     have it; records of it at      has a record; never state
                     the other replicas
==================== ============================== ==============================================

See Gog, Isard and Abadi (2021) for the first five; GlobalCheckpoint is Naiad's scheme (Murray et
al., 2013), Causal follows tree clocks, Replicated follows DADSTORM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.core.delivery.replicated import ReplicaSettings
from penstock.durations import Duration, duration_us
from penstock.errors import SettingsError

__all__ = [
    "Batch",
    "Causal",
    "Eager",
    "Ephemeral",
    "GlobalCheckpoint",
    "Lazy",
    "Regime",
    "Replicated",
]

Every = int | Duration
"""A number of epochs, or a time."""


@dataclass(frozen=True)
class Regime:
    """How the nodes of a stage survive the loss of their hosts."""

    logged: ClassVar[bool] = False
    """Whether a node keeps what it has sent until no node can ask for it again."""
    clean: ClassVar[bool] = True
    """Whether a node sends nothing of an epoch before the epoch is complete in it."""
    persists: ClassVar[bool] = False
    """Whether what leaves the stage is made durable first."""
    whole_flow: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """As people write it."""
        return type(self).__name__

    def epochs(self, interval_us: int) -> int | None:
        """Number of epochs between checkpoints; None: by time, or never."""
        return None

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class Causal(Regime):
    """Only the lost node restarts, and repeats what its neighbours know of it."""

    logged = True
    clean = False


@dataclass(frozen=True)
class Ephemeral(Regime):
    """Nothing is kept: for stages without state whose senders can send again.

    With ``logInputs`` everything that is delivered is kept, from the beginning, so that even state
    can be made again.
    """

    clean = False
    logInputs: bool = False


@dataclass(frozen=True)
class Lazy(Regime):
    """The state is kept now and then; what came after is worked on again.

    ``every`` is a number of epochs or a time.  With ``selective=False`` rows of an epoch wait until
    all epochs before it are complete, as they must where state is not kept apart by time.
    """

    every: Every = 10
    selective: bool = True

    def __post_init__(self) -> None:
        _checked(self, self.every)

    def epochs(self, interval_us: int) -> int | None:
        return _epochs(self.every, interval_us)


@dataclass(frozen=True)
class Batch(Regime):
    """An epoch is worked on when it is complete, and what it gives is kept."""

    persists = True
    every: Every = 10

    def __post_init__(self) -> None:
        _checked(self, self.every)

    def epochs(self, interval_us: int) -> int | None:
        return _epochs(self.every, interval_us)


@dataclass(frozen=True)
class Eager(Regime):
    """State and output of every epoch are durable before anything leaves."""

    persists = True

    def epochs(self, interval_us: int) -> int | None:
        return 1


@dataclass(frozen=True)
class GlobalCheckpoint(Regime):
    """The whole flow pauses, keeps its state and goes on; after a loss all of it goes back."""

    whole_flow = True
    every: Every = 10

    def __post_init__(self) -> None:
        _checked(self, self.every)

    def epochs(self, interval_us: int) -> int | None:
        return _epochs(self.every, interval_us)


@dataclass(frozen=True)
class Replicated(Regime):
    """Other replicas of a stage know what one has, and take over at once; for stages without state.

    What is in flight survives the loss of ``depth`` hosts at once.  ``mirrored`` and
    ``acknowledged`` are two other ways, for comparison: rows instead of records go to the other
    replicas; or nothing does, and a source reads on when what it read last has come to the end.
    """

    clean = False
    depth: int = 1
    mirrored: bool = False
    acknowledged: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.depth, bool) or not isinstance(self.depth, int):
            raise SettingsError(f"Replicated: depth is a number of hosts, got {self.depth!r}")
        self.settings(1)

    def settings(self, run: int) -> ReplicaSettings:
        """Settings of its replicas where a host plays ``run`` stages in a row."""
        depth = 1 if self.mirrored else self.depth * run
        if self.mirrored and self.depth > 1:
            depth = self.depth  # refused with the reason
        return ReplicaSettings(depth=depth, mirrored=self.mirrored, acknowledged=self.acknowledged)


PAUSES = ("insensitive", "normal", "low-latency")
"""Pause classes, in the order in which stages are stopped during a rollback."""


def checked_pause(pause: str) -> str:
    """A pause class."""
    if pause not in PAUSES:
        raise SettingsError(f"withPause: {' or '.join(map(repr, PAUSES))}, got {pause!r}")
    return pause


def checked_regime(regime: object, where: str, whole_flow: bool = False) -> Regime:
    """A regime that can be set there."""
    if not isinstance(regime, Regime):
        raise SettingsError(
            f"{where}: a regime is Causal(), Lazy(every=10), Ephemeral(), Batch(), Eager(), "
            f"Replicated() or GlobalCheckpoint(every=10), got {regime!r}"
        )
    if regime.whole_flow and not whole_flow:
        raise SettingsError(
            f"{where}: {regime.name} is a regime of the whole flow: start(regime={regime!r})"
        )
    return regime


def _checked(regime: Regime, every: Every) -> None:
    if isinstance(every, bool) or (isinstance(every, int) and every < 1):
        raise SettingsError(f"{regime.name}: every must be at least one epoch, got {every!r}")
    if not isinstance(every, int) and duration_us(every, "every") <= 0:
        raise SettingsError(f"{regime.name}: every must be longer than nothing, got {every!r}")


def _epochs(every: Every, interval_us: int) -> int:
    if isinstance(every, int):
        return every
    return max(1, round(duration_us(every, "every") / interval_us))
