"""Loops over streams: what enters, what goes round, what leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.api.stage import Input, columns_of, where_is
from penstock.api.stream import Stream
from penstock.errors import GraphError, SchemaError, SettingsError
from penstock.operators.base import Forward
from penstock.operators.loop import Again, Enter, Leave

if TYPE_CHECKING:
    from penstock.api.flow import Flow

__all__ = ["Loop", "Variable"]


class Loop:
    """A loop context: times inside it carry a counter of iterations.

        loop = flow.loop("reach")
        edges = loop.enter(edge_stream)
        labels = loop.variable(schema)             # what comes round
        better = labels.union(loop.enter(start)) ...
        labels.feed(better)                        # goes round
        result = loop.leave(better)

    Loops nest: ``flow.loop("inner", parent=loop)``.
    """

    def __init__(
        self, flow: Flow, name: str, parent: Loop | None, maxIterations: int | None
    ) -> None:
        if maxIterations is not None and maxIterations < 1:
            raise SettingsError(f"loop {name!r}: maxIterations must be at least 1")
        self.name = name
        self.parent = parent
        self.maxIterations = maxIterations
        self._flow = flow

    def __repr__(self) -> str:
        return f"Loop({self.name!r})"

    def enter(self, stream: Stream) -> Stream:
        """The stream's rows as rows of iteration 0."""
        if stream._stage.loop is not self.parent:
            raise GraphError(
                f"loop {self.name!r}: {stream._stage.name!r} is {where_is(stream._stage.loop)}; "
                f"only streams {where_is(self.parent)} can enter"
            )
        entered = self._flow._stage(Enter(), (stream,), name=None)
        entered._stage.loop = self
        return entered

    def variable(self, schema: pa.Schema) -> Variable:
        """The stream of what comes round; say later with ``feed`` what that is."""
        stage = self._flow._stage(Again(schema, self.maxIterations), ())._stage
        stage.loop = self
        return Variable(self._flow, stage, 0)

    def leave(self, stream: Stream) -> Stream:
        """The stream's rows of all iterations as rows of the epoch (or the outer iteration)."""
        if stream._stage.loop is not self:
            raise GraphError(
                f"loop {self.name!r}: {stream._stage.name!r} is {where_is(stream._stage.loop)}; "
                "only streams of this loop can leave it"
            )
        left = self._flow._stage(Leave(), (stream,))
        left._stage.loop = self.parent
        return left


class Variable(Stream):
    """What comes round in a loop."""

    def feed(self, stream: Stream) -> None:
        """Say which stream comes round."""
        if self._stage.inputs:
            raise GraphError(f"{self._stage.name!r} is fed already; union the streams first")
        if stream._stage.loop is not self._stage.loop:
            raise GraphError(
                f"{self._stage.name!r} is {where_is(self._stage.loop)}, but "
                f"{stream._stage.name!r} is {where_is(stream._stage.loop)}"
            )
        if not stream.schema.equals(self.schema):
            raise SchemaError(
                f"{self._stage.name!r}: what goes round has the columns "
                f"[{columns_of(stream.schema)}], but [{columns_of(self.schema)}] was announced"
            )
        self._stage.inputs = (Input(stream._stage, stream._port, Forward()),)
