"""Makes the flow that a checked topology file describes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from types import ModuleType
from typing import Any

from penstock.api.flow import Flow
from penstock.api.stream import Stream
from penstock.api.vertex import Vertex
from penstock.connectors.base import Sink, Source
from penstock.core.delivery.routing import Routing, RoutingKind, routing_named
from penstock.errors import SchemaError, SettingsError, UsageError
from penstock.expressions.ddl import parse_schema
from penstock.expressions.suggest import nearest
from penstock.importing import find
from penstock.operators import terms as F
from penstock.operators.terms import Aggregate
from penstock.topology import keys as k
from penstock.topology.check import in_order, inputs_of
from penstock.topology.document import Document
from penstock.topology.regime import regime_of

__all__ = ["FlowBuilder"]

_AGGREGATE = re.compile(r"\s*(\w+)\s*\(\s*(\*|[^()]+?)\s*\)\s*")
_AGGREGATES: Mapping[str, Callable[[str], Aggregate]] = {
    "count": F.count,
    "sum": F.sum,
    "min": F.min,
    "max": F.max,
    "avg": F.avg,
}
Table = Mapping[str, Any]


class FlowBuilder:
    """Turns the tables of a document into stages of a flow, one after the other."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.folder = document.file.resolve().parent
        self.streams: dict[str, Stream] = {}
        self.modules: list[ModuleType] = []
        """The modules that functions came from."""
        with document.at(("name",), "name"):
            self.flow = Flow(document.data.get("name", default_name(document.file)))

    def build(self) -> Flow:
        """The whole flow."""
        document = self.document
        for sort, name, table in in_order(document):
            main = k.KINDS[sort][table["type"]].main
            what = f"{sort} {name!r} ({table['type']})"
            with document.at((sort, name, main), what):
                self._member(sort, name, table)
        self._guarantees()
        return self.flow

    def _member(self, sort: str, name: str, table: Table) -> None:
        self._made_member(sort, name, table)
        if "regime" in table:
            self.streams[name].withRegime(regime_of(table["regime"]))

    def _made_member(self, sort: str, name: str, table: Table) -> None:
        if sort == "source":
            self.streams[name] = self._source(name, table)
        elif sort == "sink":
            self._sink(name, table, self._input(table))
        elif table["type"] == "join":
            self.streams[name] = self._join(name, table).name(name)
        else:
            self.streams[name] = self._stage(name, table, self._input(table))

    def _input(self, table: Table) -> Stream:
        """The rows of all inputs together."""
        first, *others = [self.streams[name] for name in inputs_of(table)]
        return first.union(*others) if others else first

    def _guarantees(self) -> None:
        data, flow = self.document.data, self.flow
        for sort in ("source", "stage", "sink"):
            for name, table in data.get(sort, {}).items():
                if "guarantee" in table:
                    flow.setGuarantee(name, table["guarantee"])
        try:
            flow.guarantees(data.get("guarantee", "exactly-once"))
        except UsageError as error:
            self.document.problem(
                self._blamed(error.parameters.get("stage", "")), error.message, value=True
            )
            self.document.refuse()

    def _blamed(self, stage: str) -> tuple[str, ...]:
        """The key that is wrong about a stage's guarantee."""
        for sort in ("source", "stage", "sink"):
            if stage in self.document.data.get(sort, {}):
                return (sort, stage, "guarantee")
        return ("guarantee",)

    # -- sources ---------------------------------------------------------------------------------

    def _source(self, name: str, table: Table) -> Stream:
        flow, shards = self.flow, table.get("replicas")
        schema = parse_schema(table["schema"]) if "schema" in table else None
        if table["type"] == "files":
            options = table.get("options", {})
            return flow.files(
                self.path(table["path"]),
                format=table.get("format"),
                schema=schema,
                shards=shards,
                name=name,
                **options,
            )
        if table["type"] == "generate":
            return flow.generate(
                self._function(table),
                rate=table.get("rate"),
                rows=table.get("rows"),
                shards=shards,
                schema=schema,
                name=name,
            )
        if shards is not None:
            raise SettingsError("a source of your own decides itself how many replicas it has")
        made = self._made(table, Source)
        return flow.source(made, name)

    # -- sinks -----------------------------------------------------------------------------------

    def _sink(self, name: str, table: Table, stream: Stream) -> None:
        if table["type"] == "parquet":
            stream.parquet(self.path(table["path"]), name=name)
        elif table["type"] == "console":
            stream.console(rows=table.get("rows", 20), name=name)
        elif table["type"] == "foreachBatch":
            stream.foreachBatch(self._function(table), name=name)
        else:
            stream.to(self._made(table, Sink), name=name)

    # -- stages ----------------------------------------------------------------------------------

    def _stage(self, name: str, table: Table, stream: Stream) -> Stream:
        if table["type"] in ("unique", "count", "aggregate"):
            return self._keyed(table, self._gathering(table, stream)).name(name)
        stream = self._routed(name, table, stream)
        kind = table["type"]
        if kind == "filter":
            return stream.filter(table["condition"]).name(name)
        if kind == "select":
            return stream.select(*_texts(table["columns"])).name(name)
        if kind == "withColumn":
            return stream.withColumn(table["column"], table["expression"]).name(name)
        if kind == "drop":
            return stream.drop(*_texts(table["columns"])).name(name)
        if kind == "duplicate":
            return stream.duplicate(table.get("copies", 2)).name(name)
        if kind == "withWatermark":
            return stream.withWatermark(table["column"], table["delay"]).name(name)
        if kind == "union":
            return stream.select(*stream.columns).name(name)
        return self._custom(table, stream).name(name)

    def _routed(self, name: str, table: Table, stream: Stream) -> Stream:
        """The rows on their way to the replicas that the stage wants."""
        routing, replicas = table.get("routing"), table.get("replicas")
        if routing is None and replicas is None:
            return stream
        with self.document.at(("stage", name, "routing" if routing else "replicas"), "routing"):
            routed = stream.route(routing or "random", replicas)
        routed._stage.name = self.flow._free_name(f"{name}_route")
        return routed

    def _custom(self, table: Table, stream: Stream) -> Stream:
        function = self._function(table)
        schema = parse_schema(table["schema"]) if "schema" in table else stream.schema
        made = function.func if isinstance(function, functools.partial) else function
        if isinstance(made, type) and issubclass(made, Vertex):
            return stream.process(function, schema)
        return stream.mapInArrow(function, schema)

    # -- stages that bring equal keys together themselves ----------------------------------------

    def _gathering(self, table: Table, stream: Stream) -> Stream:
        """Check that the routing, if one is given, is what the stage does anyway."""
        columns = _texts(table.get("by", table.get("columns", [])))
        routing = None if "routing" not in table else routing_named(table["routing"])
        keys = columns or (list(stream.columns) if table["type"] == "unique" else [])
        if routing is not None and not _brings_together(routing, keys):
            wanted = f"hash({keys[0]})" if len(keys) == 1 else "primary"
            raise SettingsError(
                f"routing {table['routing']!r} does not bring equal values of "
                f"[{', '.join(keys)}] together: leave it out, or choose {wanted!r}"
            )
        alone = not keys or (routing is not None and routing.kind is RoutingKind.PRIMARY)
        if alone and table.get("replicas", 1) > 1:
            raise SettingsError(
                f"one replica has to see all rows, so {table['replicas']} cannot share them; leave "
                "replicas out" + ("" if keys else ", or group the rows by a column")
            )
        return stream

    def _keyed(self, table: Table, stream: Stream) -> Stream:
        kind = table["type"]
        made: Stream
        if kind == "unique":
            made = stream.unique(*_texts(table.get("columns", [])), within=table.get("within"))
        elif kind == "count":
            made = stream.count(*_texts(table.get("by", [])))
        else:
            made = self._aggregate(table, stream)
        return _with_shards(made, table)

    def _aggregate(self, table: Table, stream: Stream) -> Stream:
        keys: list[Any] = _texts(table.get("by", []))
        if "window" in table and "session" in table:
            raise SettingsError("give a window or a session, not both")
        if "window" in table:
            known = {"column": True, "size": True, "slide": False}
            given = _part(table["window"], known, "window")
            keys.append(F.window(given["column"], given["size"], given.get("slide")))
        elif "session" in table:
            given = _part(table["session"], {"column": True, "gap": True}, "session")
            keys.append(F.session_window(given["column"], given["gap"]))
        made = [_aggregate_of(name, text) for name, text in table["aggregates"].items()]
        grouped = stream.groupBy(*keys)
        return grouped.agg(*made, allowedLateness=table.get("allowedLateness", 0))

    def _join(self, name: str, table: Table) -> Stream:
        left, right = (self.streams[one] for one in inputs_of(table))
        keys = _texts(table["on"])
        if "routing" in table and not _brings_together(routing_named(table["routing"]), keys):
            raise SettingsError("a join brings rows together by its columns: leave routing out")
        made = left.join(right, keys, table.get("how", "inner"), within=table["within"])
        return _with_shards(made, table)

    # -- things of the user's --------------------------------------------------------------------

    def path(self, path: str) -> str:
        """Paths are seen from the file."""
        return path if "://" in path or path.startswith("file:") else str(self.folder / path)

    def _function(self, table: Table) -> Any:
        found, module = find(table["function"], self.folder)
        if not callable(found):
            raise SettingsError(f"{table['function']} is {found!r}, not a function")
        if module not in self.modules:
            self.modules.append(module)
        arguments = table.get("arguments")
        return functools.partial(found, **arguments) if arguments else found

    def _made(self, table: Table, wanted: type) -> Any:
        function = self._function(table)
        try:
            made = function()
        except TypeError as error:
            raise SettingsError(f"{table['function']} cannot be called: {error}") from error
        if not isinstance(made, wanted):
            raise SettingsError(
                f"{table['function']} made a {type(made).__name__}, which is no penstock "
                f"{wanted.__name__}"
            )
        return made


def default_name(file: FilePath) -> str:
    """A flow's name from its file's: what is no letter or digit becomes an underscore.

    >>> default_name(FilePath("a/word-count.toml"))
    'word_count'
    """
    name = re.sub(r"\W", "_", file.stem, flags=re.ASCII)
    return name if not name[:1].isdigit() else f"_{name}"


def _texts(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _with_shards(stream: Stream, table: Table) -> Stream:
    alone = table.get("routing") == "primary"
    stream._stage.shards = 1 if alone else table.get("replicas")
    return stream


def _brings_together(routing: Routing, keys: list[str]) -> bool:
    if routing.kind is RoutingKind.PRIMARY:
        return True
    return routing.kind is RoutingKind.HASH and keys == [routing.column]


def _aggregate_of(name: str, text: Any) -> Aggregate:
    found = _AGGREGATE.fullmatch(text) if isinstance(text, str) else None
    if found is None or found.group(1).lower() not in _AGGREGATES:
        close = nearest(found.group(1), _AGGREGATES) if found else ";"
        known = ", ".join(f"{one}(column)" for one in _AGGREGATES)
        raise SchemaError(f"{name} = {text!r} is no aggregate{close} there are {known}, count(*)")
    return _AGGREGATES[found.group(1).lower()](found.group(2)).alias(name)


def _part(table: Table, known: Mapping[str, bool], what: str) -> Table:
    for name in table:
        if name not in known:
            raise SettingsError(
                f"{what}: no key {name!r}{nearest(name, known)} there are {', '.join(known)}"
            )
    missing = [name for name, needed in known.items() if needed and name not in table]
    if missing:
        raise SettingsError(f"{what} lacks {missing[0]!r}")
    return table
