"""What an operator is: an inert definition that checks schemas and makes vertices.

An operator is plain data.  It is made on the driver while the user writes the flow, travels to the
hosts with the code, and makes one vertex per node there.  It never holds state of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa

from penstock.api.vertex import Time, Vertex

if TYPE_CHECKING:
    from penstock.connectors.base import Source

__all__ = [
    "Broadcast",
    "Exchange",
    "Forward",
    "Hash",
    "Kernel",
    "KernelVertex",
    "Operator",
    "Single",
    "SourceOperator",
    "State",
]

State = Literal["none", "epoch", "unordered", "ordered"]
"""What a vertex keeps between batches: nothing, rows of open epochs, state that the order of its
input within an epoch does not matter to, state that it may matter to."""


class Exchange:
    """How the rows of an input find their shard."""


@dataclass(frozen=True)
class Forward(Exchange):
    """Rows stay in their shard: the two stages can be fused into one node."""


@dataclass(frozen=True)
class Hash(Exchange):
    """Rows with equal values in ``columns`` meet in one shard."""

    columns: tuple[str, ...]


@dataclass(frozen=True)
class Single(Exchange):
    """All rows go to the one shard of the stage."""


@dataclass(frozen=True)
class Broadcast(Exchange):
    """Every shard gets every row."""


class Operator(ABC):
    """An inert definition of a stage."""

    kind: ClassVar[str]
    """One word for explain() and for derived names, such as ``filter``."""
    stateful: ClassVar[bool] = False
    on_driver: ClassVar[bool] = False
    """Whether its (single) node lives in the driver's process rather than in a Spark task."""
    sink: ClassVar[bool] = False
    apart: ClassVar[bool] = False
    """Whether its nodes are its own: it is not fused with the stage before it."""
    calls_for_rows: ClassVar[bool] = False
    """Whether, without state, it can raise because of single rows, which it may then pass over."""
    foreign: ClassVar[bool] = False
    """Whether users' code makes what it sends, so that the engine compares it with the schema."""

    @abstractmethod
    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        """Check the input schemas (raising SchemaError) and give one schema per output port."""

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        """What each input asks for; by default rows stay where they are."""
        return tuple(Forward() for _ in inputs)

    def combiner(self, used_ports: frozenset[int]) -> tuple[Operator, Operator] | None:
        """Split into (part before the exchange, part after it), or None.

        ``used_ports`` are the output ports that are read: a split that would lose what one
        of them needs is not offered.
        """
        return None

    @abstractmethod
    def vertex(self) -> Vertex:
        """Make the vertex of one node; called in the host."""

    def describe(self) -> str:
        """The arguments, as explain() prints them."""
        return ""

    @property
    def state(self) -> State:
        """What its vertices keep between batches, and lose with their process."""
        return "unordered" if self.stateful else "none"

    @property
    def asks(self) -> bool:
        """Whether its vertices ask for the time, random numbers or answers from outside."""
        return False

    @property
    def repeatable(self) -> bool:
        """Whether its vertices, given the same again, make the same again."""
        return True

    def cut_grid_us(self) -> int | None:
        """Event-time grid (µs) at which results become due: sources cut epochs there at once."""
        return None


Kernel = Callable[[pa.RecordBatch], pa.RecordBatch]
"""A stateless function of a batch to a batch."""


class StatelessOperator(Operator):
    """An operator that is a function of each batch alone."""

    @abstractmethod
    def kernel(self) -> Kernel:
        """Make the function; called in the host."""

    def vertex(self) -> Vertex:
        return KernelVertex(self.kernel())


class KernelVertex(Vertex):
    """Runs a kernel on every batch."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.sendBy(0, self.kernel(batch), time)


class SourceOperator(Operator):
    """The stage of a source; its node drives a reader instead of receiving batches."""

    kind = "source"
    foreign = True

    def __init__(self, source: Source) -> None:
        self.source = source

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        return (self.source.schema,)

    def vertex(self) -> Vertex:
        return Vertex()

    def describe(self) -> str:
        return self.source.describe()
