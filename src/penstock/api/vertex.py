"""The vertex: what a stage does with batches, in Naiad's terms (Section 2.2 of the paper).

A vertex is single-threaded and deterministic: the same batches and notifications give the same
outputs, byte for byte.  It never asks the clock, threads, or the order of a set of strings.  It
owns its state; the engine owns everything else.

Promises of the engine:

- ``onNotify(t)`` comes after every ``onRecv`` at a time at or before ``t``;
- notifications come in order, and only those that were asked for with ``notifyAt``;
- ``watermark(t)`` is a function of the epochs, never of the order in which messages arrived.

Promises of the vertex: while it handles time ``t`` it sends and asks for notifications only at
times ``t'`` with ``t.less_equal(t')``.

A vertex whose process dies is made again and given back its last checkpoint; then it gets again
what came after, in the same order.  What that takes depends on what the class says of itself:

- ``stateless = True``: it keeps nothing between batches and asks for no notifications.  Nothing is
  stored for it;
- ``orderSensitive = False``: within an epoch it does not matter to its state and to what it sends
  in which order batches arrive, as it does not for sums.  It is spared the record of that order;
- otherwise the order of its input is made durable before anything that depends on it leaves.

A checkpoint has what ``snapshot`` gives and the notifications that were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from penstock.core.time import Time

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["EpochVertex", "Time", "Vertex", "VertexContext"]


@dataclass(frozen=True)
class Place:
    """Which node of which stage a vertex is: what errors and metrics name."""

    stage: str
    shard: int
    shards: int
    incarnation: int = 0
    """How often the node was started before, here or elsewhere; a later one takes its place."""

    @property
    def node(self) -> str:
        """The node's name, such as ``counts[1]``."""
        return f"{self.stage}[{self.shard}]"


class VertexContext(Protocol):
    """What the engine (or a test) gives a vertex."""

    place: Place

    def send(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        """Pass a batch on at a time that is not in the past."""

    def notify(self, time: Time, capability: Time | EllipsisType | None = ...) -> None:
        """Ask for one notification once ``time`` is complete, to send at ``capability``."""

    def watermark(self, time: Time) -> int | None:
        """Event-time watermark (µs) after ``time``'s epoch; None: no stage has set one."""

    def count(self, name: str, value: int) -> None:
        """Add to a counter that the flow's progress shows, such as ``rows_late``."""

    def now(self) -> int:
        """The wall clock (µs); a replay is given the same."""

    def random(self) -> float:
        """A random number from 0 up to 1; a replay is given the same."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function answers; a replay is given the same answer, without the call."""


class Vertex:
    """A user's own stage; subclass it and override ``onRecv`` and, if wanted, ``onNotify``.

    >>> class Echo(Vertex):
    ...     def onRecv(self, port, batch, time):
    ...         self.sendBy(0, batch, time)
    """

    stateless: ClassVar[bool] = False
    """Whether it keeps nothing between batches."""
    orderSensitive: ClassVar[bool] = True
    """Whether the order of batches within an epoch can matter to it."""
    repeatable: ClassVar[bool] = True
    """Whether, given the same again, it makes the same again; if not, its flow ends when a host is
    lost."""
    usesOutside: ClassVar[bool | None] = None
    """Whether it calls ``now``, ``random`` or ``call``; None: as its methods look."""

    _context: VertexContext

    def open(self, context: VertexContext) -> None:
        """Called once in the host, before anything else; call ``super().open`` when overriding."""
        self._context = context

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        """A batch arrived at an input port."""
        raise TypeError(f"{type(self).__name__} has inputs but does not override onRecv")

    def onNotify(self, time: Time) -> None:
        """Nothing at or before ``time`` will arrive any more."""

    def released(self, low: int, completed: int) -> None:
        """Called now and then: no recovery goes back behind the epoch ``low`` any more.

        ``completed`` is the last epoch that this node has completed.
        """

    def close(self) -> None:
        """Called once when the node ends in an orderly way; release what ``open`` took."""

    def snapshot(self) -> Mapping[str, Any]:
        """The state now, by name: Arrow tables and plain values; by default its attributes.

        Numbers, strings, dates, lists, dicts, sets, deques and NumPy arrays are copied while the
        node waits; Arrow data is referred to, which costs nothing.  Override it, and ``restore``,
        if the state is large or has objects of other types.  Functions, classes and the like that
        ``__init__`` or ``open`` set are left out.
        """
        return {name: value for name, value in vars(self).items() if name != "_context"}

    def restore(self, state: Mapping[str, Any], time: Time) -> None:
        """Take back a snapshot into a new vertex, after ``open``; ``time`` was complete by then."""
        vars(self).update(state)

    def sendBy(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        """Send a batch on an output port; empty batches are not sent."""
        if batch.num_rows:
            self._context.send(port, batch, time)

    def notifyAt(self, time: Time, capability: Time | EllipsisType | None = ...) -> None:
        """Ask for ``onNotify(time)``; asking twice gives one notification.

        ``time`` is the *guarantee*: the call comes when it is complete.  ``capability`` is the time
        from which on that call may send and ask for more: by default the same; a later one lets
        others complete what lies between; None, for cleaning up, holds no epoch back.
        """
        if isinstance(capability, EllipsisType):
            self._context.notify(time)
        else:
            self._context.notify(time, capability)

    def watermark(self, time: Time) -> int | None:
        """The event-time watermark (microseconds) once the epochs up to ``time`` are complete.

        Rows of later epochs with an event time below it are late.
        """
        return self._context.watermark(time)

    def count(self, name: str, value: int) -> None:
        """Add to a counter that the flow's progress shows."""
        self._context.count(name, value)

    def now(self) -> int:
        """The wall clock in microseconds; a replay is given the same, so it repeats itself."""
        return self._context.now()

    def random(self) -> float:
        """A random number from 0 up to 1; a replay is given the same."""
        return self._context.random()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of the outside world answers; a replay is given the same answer.

        The answer is noted, so it must be plain: numbers, strings, bytes, None, lists or dicts of
        these (lists come back as tuples).
        """
        return self._context.call(function, *arguments)

    @property
    def place(self) -> Place:
        """This vertex's stage, shard and number of shards."""
        return self._context.place


class EpochVertex(Vertex):
    """A vertex that is told of every epoch's end, whether anything arrived or not."""

    def onEpoch(self, epoch: int, watermark_us: int | None) -> None:
        """An epoch is complete, and with it all before; this is the watermark after it."""
        raise NotImplementedError
