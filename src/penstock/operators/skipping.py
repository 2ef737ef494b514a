"""onError("skip"): rows that a stage fails for leave on a port of their own, the others go on.

A batch that raises is halved until the rows at fault are alone, so that no row costs more than
before as long as nothing fails.  A row is at fault if the stage raises for it alone: that does not
depend on the batch it came in, and a replay finds the same rows.

Rows that end the process are found by the controller (:mod:`penstock.core.control.deadly_rows`); a
:class:`~penstock.operators.row_guard.RowGuard` says which they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.api.vertex import Time, Vertex, VertexContext
from penstock.errors import InvariantError, NotWrittenError
from penstock.operators.base import Exchange, Operator, SourceOperator, State
from penstock.operators.filter import Filter
from penstock.operators.map_in_arrow import MapInArrow
from penstock.operators.project import Select, WithColumn
from penstock.operators.row_guard import RowGuard, digests_of
from penstock.operators.user_vertex import UserVertex

__all__ = ["ERRORS", "Skipping", "cannot_skip"]

ERRORS = pa.schema(
    [
        pa.field("stage", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
    ]
)
"""What is known of a row that was passed over; ``row`` is the row itself, as JSON."""

Sent = tuple[int, pa.RecordBatch, Time]


def cannot_skip(operator: Operator) -> str | None:
    """Why a stage cannot pass over the rows that it raises for; None: it can."""
    if isinstance(operator, SourceOperator):
        return "it is a source, which has no rows to pass over"
    if operator.sink:
        return "it is a sink, which works on whole epochs; raise NotWrittenError to be called again"
    if operator.state != "none":
        return (
            "it keeps state, and what a failed call has left in it cannot be taken back; let a "
            "stage without state before it check the rows"
        )
    if operator.asks:
        return (
            "it asks for the time, random numbers or answers from outside (or is marked "
            "repeatable=False), and a replay could not tell which call had failed"
        )
    calls = isinstance(operator, MapInArrow | Filter | Select | WithColumn | UserVertex)
    if not (calls or operator.calls_for_rows):
        return "it calls no function, and has no expression, that could raise for a row"
    return None


class Skipping(Operator):
    """Another operator, with one more port for the rows that it raises for."""

    kind = "skipping"

    def __init__(self, operator: Operator, port: int) -> None:
        self.operator = operator
        self.port = port

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        return (*self.operator.output_schemas(inputs), ERRORS)

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return self.operator.exchanges(inputs)

    @property
    def state(self) -> State:
        return "none"

    @property
    def repeatable(self) -> bool:
        return self.operator.repeatable

    def cut_grid_us(self) -> int | None:
        return self.operator.cut_grid_us()

    def vertex(self) -> Vertex:
        return SkippingVertex(self.operator.vertex(), self.port)

    def describe(self) -> str:
        return f"{self.operator.kind} {self.operator.describe()}".strip()


class SkippingVertex(Vertex):
    """Runs another vertex; nothing of a call that raises leaves."""

    stateless = True

    def __init__(self, vertex: Vertex, port: int) -> None:
        self.guard: RowGuard | None = None
        """What is known of rows that end the process; set before ``open``."""
        self._vertex = vertex
        self._port = port
        self._sent: list[Sent] = []
        self._called: tuple[int, pa.RecordBatch] | None = None
        """What the other vertex is being called with."""

    def open(self, context: VertexContext) -> None:
        super().open(context)
        self._vertex.open(_Collecting(context, self._sent))

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        failed: list[tuple[pa.RecordBatch, str]] = []
        parts: Iterable[pa.RecordBatch] = (batch,)
        if self.guard is not None:
            parts = self.guard.parts(port, batch, time.epoch, failed)
        for part in parts:
            self._attempt(port, part, time, failed)
        self._release()
        if failed:
            self.count("rows_failed", len(failed))
            self.sendBy(self._port, self._letters(failed, time), time)

    def called_with(self) -> tuple[int, ...]:
        """The digests of the rows that it is being called with."""
        return () if self._called is None else digests_of(*self._called)

    def onNotify(self, time: Time) -> None:
        self._vertex.onNotify(time)
        self._release()

    def close(self) -> None:
        self._vertex.close()

    def _attempt(
        self,
        port: int,
        batch: pa.RecordBatch,
        time: Time,
        failed: list[tuple[pa.RecordBatch, str]],
    ) -> None:
        before = len(self._sent)
        self._called = port, batch
        try:
            self._vertex.onRecv(port, batch, time)
        except (InvariantError, NotWrittenError):
            raise
        except (Exception, SystemExit) as error:
            del self._sent[before:]
            if batch.num_rows < 1:
                raise
            if batch.num_rows == 1:
                failed.append((batch, _text(error)))
                return
            half = batch.num_rows // 2
            self._attempt(port, batch.slice(0, half), time, failed)
            self._attempt(port, batch.slice(half), time, failed)
        finally:
            self._called = None

    def _release(self) -> None:
        sent, self._sent[:] = list(self._sent), []
        for made in sent:
            self._context.send(*made)

    def _letters(self, failed: list[tuple[pa.RecordBatch, str]], time: Time) -> pa.RecordBatch:
        columns = {
            "stage": [self.place.stage] * len(failed),
            "error": [text for _, text in failed],
            "epoch": [time.epoch] * len(failed),
            "row": [_json(row) for row, _ in failed],
        }
        return pa.RecordBatch.from_pydict(columns, schema=ERRORS)


class _Collecting:
    """A vertex's context that keeps what the vertex sends."""

    def __init__(self, context: VertexContext, sent: list[Sent]) -> None:
        self._context = context
        self._sent = sent

    def send(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self._sent.append((port, batch, time))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _text(error: BaseException) -> str:
    """An error in words that a replay repeats: addresses of objects differ each time."""
    return _ADDRESS.sub("0x…", f"{type(error).__name__}: {error}")


_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")


def _json(row: pa.RecordBatch) -> str:
    return json.dumps(row.to_pylist()[0], default=_plain, ensure_ascii=False)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
