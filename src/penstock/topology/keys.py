"""What a topology file may say: its tables and keys as data, for the checker and for the manual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["COMMON", "SINKS", "SOURCES", "STAGES", "TOP", "Key", "TypeSpec", "keys_of"]

TEXT, TEXTS, WHOLE, NUMBER, FLAG = "a text", "texts", "a whole number", "a number", "true or false"
DURATION, FUNCTION, TABLE, REGIME = "a duration", "a function", "a table", "a regime"
"""The kinds of values.  Texts may be one or a list; a duration is a text such as "100 ms"; a
function is "package.module:name" or "file.py:name"; a regime is its name, or a table with it."""


@dataclass(frozen=True)
class Key:
    """A key: what its value is, and what for."""

    name: str
    value: str
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class TypeSpec:
    """A type of source, stage or sink, with its keys; ``main`` is the one that most can be wrong
    with, where errors of the whole are shown."""

    about: str
    keys: tuple[Key, ...]
    main: str = "type"


GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")
_ARGUMENTS = Key("arguments", TABLE, "keyword arguments for the function")
_GUARANTEE = Key("guarantee", TEXT, "what is promised of its rows", choices=GUARANTEES)
_REGIME = Key(
    "regime",
    REGIME,
    'how it survives: `"Eager"`, or `{ type = "Lazy", every = 10 }` with arguments',
)
_REPLICAS = Key("replicas", WHOLE, "how many nodes share the work, from 1 up")

TOP = (
    Key("name", TEXT, "the flow's name; by default the file's"),
    Key("guarantee", TEXT, "what every sink promises that says nothing else", choices=GUARANTEES),
    Key("run", TABLE, "options of `start()`, by their names there"),
    Key("spark", TABLE, "Spark's configuration: `ui.enabled` here is `spark.ui.enabled`"),
    Key("source", TABLE, "a table per source, by its name", required=True),
    Key("stage", TABLE, "a table per stage, by its name"),
    Key("sink", TABLE, "a table per sink, by its name", required=True),
)

COMMON: Mapping[str, tuple[Key, ...]] = {
    "source": (Key("type", TEXT, "what it is", required=True), _REPLICAS, _REGIME, _GUARANTEE),
    "stage": (
        Key("type", TEXT, "what it is", required=True),
        Key("input", TEXTS, "the sources and stages whose rows it gets", required=True),
        _REPLICAS,
        Key("routing", TEXT, '`"hash(column)"`, `"random"` or `"primary"`: who gets a row'),
        _REGIME,
        _GUARANTEE,
    ),
    "sink": (
        Key("type", TEXT, "what it is", required=True),
        Key("input", TEXTS, "the sources and stages whose rows it gets", required=True),
        _GUARANTEE,
    ),
}
"""The keys that all of a sort have."""

SOURCES: Mapping[str, TypeSpec] = {
    "files": TypeSpec(
        "the Parquet, CSV or JSON-lines files of a folder, new ones included",
        (
            Key("path", TEXT, "the folder, a pattern, or one file", required=True),
            Key("format", TEXT, "by default as the names say", choices=("parquet", "csv", "json")),
            Key("schema", TEXT, 'such as `"word STRING, n BIGINT"`; by default the first file\'s'),
            Key("options", TABLE, "options of the format, and `pollInterval`, `onCorrupt` …"),
        ),
        main="path",
    ),
    "generate": TypeSpec(
        "rows that a function makes",
        (
            Key("function", FUNCTION, "of (offset, n), gives a record batch", required=True),
            Key("rate", NUMBER, "rows a second, over all replicas"),
            Key("rows", WHOLE, "number of rows after which the stream ends"),
            Key("schema", TEXT, "by default that of its first row"),
            _ARGUMENTS,
        ),
        main="function",
    ),
    "custom": TypeSpec(
        "a source of your own",
        (
            Key("function", FUNCTION, "a class, or a function that makes a Source", required=True),
            _ARGUMENTS,
        ),
        main="function",
    ),
}

STAGES: Mapping[str, TypeSpec] = {
    "filter": TypeSpec(
        "the rows for which a condition is true",
        (Key("condition", TEXT, 'SQL, such as `"n > 0"`', required=True),),
        main="condition",
    ),
    "select": TypeSpec(
        "columns, or what is computed from them",
        (Key("columns", TEXTS, 'names or SQL, such as `"price * 2 AS twice"`', required=True),),
        main="columns",
    ),
    "withColumn": TypeSpec(
        "one column more, or in the place of another",
        (
            Key("column", TEXT, "its name", required=True),
            Key("expression", TEXT, "SQL", required=True),
        ),
        main="expression",
    ),
    "drop": TypeSpec(
        "without some columns",
        (Key("columns", TEXTS, "their names", required=True),),
        main="columns",
    ),
    "duplicate": TypeSpec(
        "every row several times",
        (Key("copies", WHOLE, "how often; by default 2"),),
        main="copies",
    ),
    "unique": TypeSpec(
        "the first row of each value",
        (
            Key("columns", TEXTS, "whose values; by default all columns"),
            Key("within", DURATION, "how long a value is remembered, in event time"),
        ),
        main="columns",
    ),
    "count": TypeSpec(
        "how many rows there have been",
        (Key("by", TEXTS, "count for each value of these columns"),),
        main="by",
    ),
    "aggregate": TypeSpec(
        "sums and the like, per group and window",
        (
            Key("aggregates", TABLE, 'such as `{ total = "sum(price)" }`', required=True),
            Key("by", TEXTS, "the groups' columns"),
            Key("window", TABLE, "`column`, `size`, and `slide` if windows overlap"),
            Key("session", TABLE, "`column`, `gap`: a window per group ends after a gap"),
            Key("allowedLateness", DURATION, "how late rows may still change a window"),
        ),
        main="aggregates",
    ),
    "withWatermark": TypeSpec(
        "says which column is the event time",
        (
            Key("column", TEXT, "a timestamp", required=True),
            Key("delay", DURATION, "how late rows may come", required=True),
        ),
        main="column",
    ),
    "union": TypeSpec("the rows of several inputs, as they are", (), main="input"),
    "join": TypeSpec(
        "pairs of rows of two inputs that are near in event time",
        (
            Key("on", TEXTS, "columns with equal values", required=True),
            Key("within", DURATION, "how far apart the two may be", required=True),
            Key("how", TEXT, "by default inner", choices=("inner", "left")),
        ),
        main="on",
    ),
    "custom": TypeSpec(
        "a function as `mapInArrow` takes it, or a `Vertex`",
        (
            Key("function", FUNCTION, "from record batches to record batches", required=True),
            Key("schema", TEXT, "of what it makes; by default that of its input"),
            _ARGUMENTS,
        ),
        main="function",
    ),
}

SINKS: Mapping[str, TypeSpec] = {
    "parquet": TypeSpec(
        "Parquet files, a folder per epoch",
        (Key("path", TEXT, "the folder", required=True),),
        main="path",
    ),
    "console": TypeSpec(
        "printed by the driver",
        (Key("rows", WHOLE, "most rows printed of an epoch; by default 20"),),
        main="rows",
    ),
    "foreachBatch": TypeSpec(
        "a function of (rows, epoch), called on the driver",
        (Key("function", FUNCTION, "of a table and an epoch", required=True), _ARGUMENTS),
        main="function",
    ),
    "custom": TypeSpec(
        "a sink of your own",
        (
            Key("function", FUNCTION, "a class, or a function that makes a Sink", required=True),
            _ARGUMENTS,
        ),
        main="function",
    ),
}

KINDS: Mapping[str, Mapping[str, TypeSpec]] = {"source": SOURCES, "stage": STAGES, "sink": SINKS}


def keys_of(sort: str, kind: str) -> dict[str, Key]:
    """The keys of a type of source, stage or sink, by name."""
    return {key.name: key for key in (*COMMON[sort], *KINDS[sort][kind].keys)}
