"""The state of a chain's vertices at one moment, between two steps of its node.

There are two ways to keep a chain:

- Library stages touch their state only when an epoch is complete.  Kept are the state as of the
  last complete epoch and references to the batches of open epochs, which are given to the chain
  again with its output muted.
- A user's vertices are kept as they are, with the notifications that they have asked for.

Taking a state copies nothing that is large unless a user's vertex holds it in lists or arrays.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.api.vertex import Vertex
from penstock.core.progress.notifications import Notification
from penstock.core.time import Time
from penstock.engine.store.state_codec import freeze_attributes, thaw
from penstock.operators.base import Operator
from penstock.operators.grown import Grown
from penstock.operators.stateful import StatefulVertex
from penstock.operators.user_vertex import UserVertex
from penstock.operators.watermark import WatermarkVertex

__all__ = [
    "ChainState",
    "Pending",
    "StageState",
    "Watermarks",
    "captured",
    "given_back",
    "keeps",
]

Pending = tuple[int, Time, pa.RecordBatch]
"""Input port, time, batch."""

HISTORY = 1024
"""How many epochs back a vertex may ask for the watermark."""


@dataclass(frozen=True)
class StageState:
    """What one vertex keeps."""

    values: Any = None
    """Its snapshot, frozen (:mod:`penstock.engine.store.state_codec`); None: nothing is kept."""
    tables: tuple[pa.Table | Grown, ...] = ()
    """The Arrow data that the values refer to."""
    asked: tuple[Notification, ...] = ()
    watermarks: tuple[tuple[int, int | None], ...] = ()
    """The watermark that it passes on, as (epoch, value); kept where it is not another one's."""


@dataclass(frozen=True)
class ChainState:
    """What a chain keeps: its stages in order, and the input of open epochs."""

    stages: tuple[StageState, ...] = ()
    pending: tuple[Pending, ...] = ()
    watermarks: tuple[tuple[int, int | None], ...] = ()
    """The watermark at the head, as (epoch, value)."""


def keeps(operator: Operator, vertex: Vertex) -> str:
    """How a stage is kept: "" (not at all), "epochs" (with the input of open epochs), "whole"."""
    if operator.state == "none":
        return ""
    whole = isinstance(operator, UserVertex) and not isinstance(vertex, StatefulVertex)
    return "whole" if whole else "epochs"


def captured(
    operator: Operator,
    vertex: Vertex,
    initial: Mapping[str, Any],
    asked: Mapping[Notification, Any],
) -> StageState:
    """The state of a vertex now."""
    if operator.state in ("none", "epoch") and not isinstance(vertex, WatermarkVertex):
        return StageState()
    tables: list[Any] = []
    values = freeze_attributes(vertex.snapshot(), initial, tables, type(vertex))
    notifications = tuple(asked) if keeps(operator, vertex) == "whole" else ()
    return StageState(values, tuple(tables), notifications)


def given_back(state: StageState, vertex: Vertex, time: Time) -> None:
    """Let a new vertex take a state."""
    if state.values is not None:
        vertex.restore(thaw(state.values, state.tables, type(vertex)), time)


class Watermarks:
    """The watermark as a step function of the epoch."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._values: list[int | None] = []

    @property
    def last(self) -> int | None:
        """The newest value."""
        return self._values[-1] if self._values else None

    def append(self, epoch: int, value: int | None) -> None:
        """The value after an epoch; what was said of it and of later ones is void."""
        while self._epochs and self._epochs[-1] >= epoch:
            self._epochs.pop()
            self._values.pop()
        self._epochs.append(epoch)
        self._values.append(value)
        if len(self._epochs) > 2 * HISTORY:
            del self._epochs[:HISTORY]
            del self._values[:HISTORY]

    def at(self, epoch: int) -> int | None:
        """The value after an epoch."""
        position = bisect.bisect_right(self._epochs, epoch)
        return self._values[position - 1] if position else None

    def entries(self, count: int = HISTORY) -> tuple[tuple[int, int | None], ...]:
        """The newest (epoch, value), oldest first."""
        return tuple(zip(self._epochs[-count:], self._values[-count:], strict=True))
