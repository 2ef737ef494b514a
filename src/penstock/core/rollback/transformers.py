"""Transformers: what a span at a sender means in the times of its receiver.

Decides two things for an edge, both conservative. ``fixed(s)`` is the paper's φ (Falkirk Wheel,
section 3.2): times that no event outside ``s`` at the sender can have given to a message, so a
receiver may keep them when the sender goes back to ``s``; smaller is always safe. ``sent(s)`` are
times that messages of events inside ``s`` may have; larger is always safe. Knows no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final

from penstock.core.rollback.spans import EMPTY, TOP, Moment, NumberedTime, Span
from penstock.core.time import CONVERGED, Time
from penstock.errors import GraphError

__all__ = [
    "ENTERING",
    "LEAVING",
    "REPLAYED",
    "SAME",
    "TURNING",
    "UNKNOWN",
    "Custom",
    "Recorded",
    "Transformer",
    "check_monotone",
    "epochs_to_numbers",
]


class Transformer:
    """How times change along an edge; the base class knows nothing and assumes the worst.

    Laws
      * both are monotone: ``a ⊆ b`` implies ``fixed(a) ⊆ fixed(b)`` and ``sent(a) ⊆ sent(b)``;
      * ``fixed(TOP) == TOP`` and ``sent(EMPTY) == EMPTY``;
      * with ``keeps_epochs``, between spans of whole epochs ``a`` and ``b``: ``b ⊆ fixed(a)`` and
        ``sent(b) ⊆ a`` hold exactly if b's epoch is at or before a's.

    >>> UNKNOWN.fixed(Span.epoch(3)), UNKNOWN.sent(Span.epoch(3))
    (EMPTY, TOP)
    """

    keeps_epochs: ClassVar[bool] = False

    def fixed(self, span: Span) -> Span:
        """Return times that nothing outside ``span`` can produce."""
        return TOP if span is TOP else EMPTY

    def sent(self, span: Span) -> Span:
        """Return times that events inside ``span`` may have produced."""
        return EMPTY if span == EMPTY else TOP

    def __repr__(self) -> str:
        return type(self).__name__.strip("_").lower()


class _Same(Transformer):
    keeps_epochs = True

    def fixed(self, span: Span) -> Span:
        return span

    def sent(self, span: Span) -> Span:
        return span


class _Replayed(_Same):
    keeps_epochs = False

    def fixed(self, span: Span) -> Span:
        return TOP


class _Loop(Transformer):
    """Spans are changed time by time, at their maximal times."""

    keeps_epochs = True

    def fixed(self, span: Span) -> Span:
        return span if span is TOP else Span.of(*self._fixed(_structured(span)))

    def sent(self, span: Span) -> Span:
        return span if span is TOP else Span.of(*map(self._sent, _structured(span)))

    def _fixed(self, tops: tuple[Time, ...]) -> Iterable[Time]:
        raise NotImplementedError

    def _sent(self, top: Time) -> Time:
        raise NotImplementedError


class _Entering(_Loop):
    def _fixed(self, tops: tuple[Time, ...]) -> Iterable[Time]:
        return (top.entered().converged() for top in tops)

    def _sent(self, top: Time) -> Time:
        return top.entered()


class _Leaving(_Loop):
    def _fixed(self, tops: tuple[Time, ...]) -> Iterable[Time]:
        return (top.left() for top in tops if top.is_converged)

    def _sent(self, top: Time) -> Time:
        return top.left()


class _Turning(_Loop):
    def _fixed(self, tops: tuple[Time, ...]) -> Iterable[Time]:
        yield from map(self._sent, tops)
        for top in tops[:1]:
            # Nothing comes round a loop at iteration 0.
            yield Time(CONVERGED, (*(CONVERGED for _ in top.counters[1:]), 0))

    def _sent(self, top: Time) -> Time:
        return top if top.is_converged else top.advanced()


class Recorded(Transformer):
    """What one execution did: ``steps`` of (span at the sender, all that was sent by then).

    For sequence numbers, whose meaning depends on the order of arrival. Both columns must grow.

    >>> t = epochs_to_numbers(7, {1: 20, 2: 25})
    >>> t.fixed(Span.epoch(1)), t.fixed(Span.epoch(0)), t.fixed(Span.epoch(9))
    (Span(NumberedTime(7, 20)), EMPTY, Span(NumberedTime(7, 25)))
    >>> t.sent(Span.epoch(0)), t.sent(Span.epoch(3))
    (Span(NumberedTime(7, 20)), TOP)
    """

    def __init__(self, steps: Iterable[tuple[Span, Span]]) -> None:
        self.steps = tuple(steps)
        for (low, image), (high, later) in zip(self.steps, self.steps[1:], strict=False):
            if not (high.includes(low) and later.includes(image)):
                raise GraphError(
                    f"recorded steps must grow, but {low} -> {image} is followed by "
                    f"{high} -> {later}"
                )

    def fixed(self, span: Span) -> Span:
        """Return what was sent by the last recorded step within ``span``."""
        if span is TOP:
            return TOP
        for at, image in reversed(self.steps):
            if span.includes(at):
                return image
        return EMPTY

    def sent(self, span: Span) -> Span:
        """Return what was sent by the first recorded step that has all of ``span``."""
        if span == EMPTY:
            return EMPTY
        for at, image in self.steps:
            if at.includes(span):
                return image
        return TOP


class Custom(Transformer):
    """A user's own functions; what is not given stays at the worst case.

    >>> Custom("halved", lambda s: Span.epoch((s.scalar or 0) // 2)).fixed(Span.epoch(9))
    Span(Time(4))
    """

    def __init__(
        self,
        name: str,
        fixed: Callable[[Span], Span] | None = None,
        sent: Callable[[Span], Span] | None = None,
    ) -> None:
        self.name = name
        self._fixed = fixed
        self._sent = sent

    def fixed(self, span: Span) -> Span:
        """Return what the user's function says; TOP for TOP."""
        if self._fixed is None or span is TOP:
            return super().fixed(span)
        return self._fixed(span)

    def sent(self, span: Span) -> Span:
        """Return what the user's function says; EMPTY for EMPTY."""
        if self._sent is None or span == EMPTY:
            return super().sent(span)
        return self._sent(span)

    def __repr__(self) -> str:
        return self.name


SAME: Final = _Same()
"""Messages have the time of the event that sent them."""
REPLAYED: Final = _Replayed()
"""As SAME, from a sender that makes the same again wherever it starts from."""
ENTERING: Final = _Entering()
"""Into a loop: all iterations of a fixed time are fixed."""
LEAVING: Final = _Leaving()
"""Out of a loop: a time is fixed when all its iterations are."""
TURNING: Final = _Turning()
"""Round a loop: one iteration later."""
UNKNOWN: Final = Transformer()
"""Nothing is known: a sender that goes back takes its receiver to the beginning."""


def epochs_to_numbers(edge: int, sent: Mapping[int, int]) -> Recorded:
    """Return the transformer of an edge that sends epochs one after the other, by number.

    ``sent[e]`` is how many messages had been sent on ``edge`` when epoch ``e`` had gone out whole.
    """
    return Recorded(
        (Span.epoch(epoch), Span.of(NumberedTime(edge, sent[epoch]))) for epoch in sorted(sent)
    )


def check_monotone(transformer: Transformer, chain: Iterable[Span], where: str) -> None:
    """Raise :class:`GraphError` if the transformer shrinks anywhere along a growing chain."""
    last: tuple[Span, Span, Span] | None = None
    for span in chain:
        fixed, sent = transformer.fixed(span), transformer.sent(span)
        if last is not None and not (fixed.includes(last[1]) and sent.includes(last[2])):
            raise GraphError(
                f"the transformer {transformer!r} of {where} is not monotone: {last[0]} gives "
                f"fixed {last[1]}, sent {last[2]}, but the larger {span} gives fixed {fixed}, sent "
                f"{sent}; a larger span must never give less",
                transformer=repr(transformer),
            )
        last = (span, fixed, sent)


def _structured(span: Span) -> tuple[Time, ...]:
    for top in span.tops:
        _require_time(top)
    return span.tops  # type: ignore[return-value]


def _require_time(top: Moment) -> None:
    if not isinstance(top, Time):
        raise GraphError(
            f"{top!r} is a sequence number: only times with an epoch enter, turn or leave a loop"
        )
