"""The contracts of sources and sinks.

A source is inert data that opens one reader per shard, in the host.  A reader is asked for batches
and can be positioned: reading again between two recorded positions gives the same rows, which is
what exactly-once delivery stands on.  The engine decides when an epoch ends and keeps the record
(position, journal) of each epoch in the flow's store before anything of that epoch's end leaves
the node.

A sink is an operator without outputs (see :class:`Sink`).  What it has published survives a
restart by being named by the epoch: publishing an epoch twice changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from penstock.connectors.ownership import Owner
from penstock.operators.base import Operator, State

__all__ = ["Followed", "FollowingReader", "KeepsFiles", "Reader", "Sink", "Source", "SourceContext"]

Position = Any
"""JSON-able; None is the beginning."""


@dataclass(frozen=True)
class SourceContext:
    """What a reader is opened with."""

    shard: int
    shards: int
    position: Position = None
    """Where to go on; None: at the beginning."""
    journal: Sequence[Any] = field(default=())
    """Every journal entry recorded so far, oldest first."""
    available_now: bool = False
    """Whether the run ends when the input that exists at the start is used up."""
    started_us: int = 0
    """Wall clock (µs) of the run's start, the same for all shards."""
    stage: str = ""
    """The source's stage, for errors."""
    recorded: Position = None
    """The newest position that was recorded, at or after ``position``."""
    resumable: bool = False
    """Whether a later run may go on where this one ends."""


class Reader(ABC):
    """One shard of a source, open in a host; used by one thread."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Figures of its own that the flow's progress shows, such as ``files_read``."""
        return {}

    @abstractmethod
    def read(self, rows_max: int, now_us: int, until: Position = None) -> pa.RecordBatch | None:
        """The next rows, at most ``rows_max``, or None when there are none right now.

        ``now_us`` is the wall clock; rate limits follow it.  With ``until`` (a position recorded
        earlier) the rows end exactly there at the latest, rate limits do not count, and None means
        that it was reached.
        """

    def read_again(self, rows: int) -> pa.RecordBatch | None:
        """The next rows, at most ``rows``, all of which were read before.

        Rate limits do not count.
        """
        return self.read(rows, 0)

    @abstractmethod
    def position(self) -> Position:
        """The position after the rows read so far: small and JSON-able."""

    def journal(self) -> Any | None:
        """What else must be remembered since the last call (such as newly found files).

        A dict whose ``"passing"`` is true is not needed behind the next recorded position.
        """
        return None

    def exhausted(self) -> bool:
        """Whether no row will come again in this run."""
        return False

    def grows(self) -> bool:
        """Whether more rows may come in a later run, though none will in this one."""
        return False

    def pending(self) -> bool:
        """Whether it knows of rows that it has not given yet; asked at the end of an epoch.

        An epoch that ends without rows meanwhile does not make the shard idle.
        """
        return False

    def epoch_ended(self) -> bool | None:
        """Whether the epoch ends where ``read`` has come to; asked after each read.

        None leaves it to the engine's epoch clock; a reader that says True or False decides
        alone.  True is said once for each end.
        """
        return None

    def wait_s(self, now_us: int) -> float:
        """How long to wait before asking again after ``read`` gave None."""
        return 0.01

    def release(self, position: Position) -> None:  # noqa: B027
        """Everything before a position has reached all sinks: it will not be read again."""

    def close(self) -> None:  # noqa: B027
        """Release what was opened."""


@dataclass(frozen=True)
class Followed:
    """An epoch that another stage ended: what is left of its rows, and the watermark after it."""

    epoch: int
    batches: list[pa.RecordBatch]
    watermark_us: int | None


class FollowingReader(Reader):
    """A reader whose rows are in epochs already: it gives them on under the same numbers.

    It is not stopped: it ends when what it follows has ended.
    """

    @abstractmethod
    def follow(self) -> Followed | None:
        """The next epoch, or the rest of the present one; None: it is not complete yet."""


class KeepsFiles(ABC):
    """A connector that keeps files of its own in the flow's store."""

    @abstractmethod
    def keep_in(self, directory: Path, sync: bool) -> None:
        """Called on the driver before anything else; ``sync``: files must outlive the machine."""


class Source(ABC):
    """Where rows come from: inert, travels to the hosts with the code."""

    schema: pa.Schema
    on_driver: bool = False
    """Whether the reader must live in the driver's process (a ``memory`` source does)."""
    replayable: bool = True
    """Whether rows can be read again from a position; without that they are at most once."""
    caveat: str = ""
    """What the end of a driver does to rows, if it does something to them."""

    @abstractmethod
    def shards(self, wanted: int) -> int:
        """How many shards it can be read in, given how many would be welcome."""

    @abstractmethod
    def open(self, context: SourceContext) -> Reader:
        """Open a shard, in its host."""

    def check(self) -> None:  # noqa: B027
        """Called on the driver at start; raises SourceError for what can be known by then."""

    def target(self) -> str | None:
        """Where it reads, in one form; a flow with a store goes on only with the same one."""
        return None

    def describe(self) -> str:
        """One line for explain() and for the progress."""
        return type(self).__name__


class Sink(Operator):
    """A stage without outputs."""

    sink = True
    durable = False
    """Whether what it published outlives the flow, named by the epoch."""
    idempotent = True
    """Whether an epoch that it is given again changes nothing; needed for exactly once."""
    caveat: ClassVar[str] = ""
    """What the restart of a driver does to rows, if it does something to them."""
    afresh: ClassVar[str] = "an empty output folder"
    """What to give a flow that shall begin anew, if an earlier run has published."""

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        return ()

    @property
    def state(self) -> State:
        return "epoch"

    def check(self) -> None:
        """Called on the driver at start; raises SinkError for what can be known by then."""

    def target(self) -> str | None:
        """Where it publishes, in one form; None: nowhere outside of the flow.

        That is what a durable sink is known by: a flow with a store goes on only with the same one.
        """
        return None

    def writes_as(self) -> str | None:
        """What no other sink may have in common with it; its target, if nothing else."""
        return self.target()

    def owner(self) -> Owner | None:
        """The run that took the target last, asked on the driver; None: it bears no mark."""
        return None

    def take(self, owner: Owner) -> None:
        """Called on the driver at start: this run writes to the target, and no other may."""

    def release(self) -> None:
        """Called on the driver when the run has ended, or did not begin."""

    def prepare(self) -> None:
        """Called on the driver when the run is sure to begin: clear what an earlier one left."""

    def committed(self) -> int | None:
        """The last epoch that a durable sink has published, asked on the driver at start."""
        return None

    def committed_by(self, shard: int) -> int | None:
        """The last epoch that a shard has published, where shards publish each for itself."""
        return self.committed()
