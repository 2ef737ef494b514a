"""Checks a topology file against what it may say: names, types, choices, who feeds whom.

All problems are gathered.  What only the flow itself can know (columns, SQL, schemas) is found when
it is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from penstock.api.stage import checked_name
from penstock.core.delivery.routing import routing_named
from penstock.durations import duration_us
from penstock.engine.settings import RunSettings
from penstock.errors import PenstockError
from penstock.expressions.suggest import nearest
from penstock.topology import keys as k
from penstock.topology.document import Document
from penstock.topology.positions import Path
from penstock.topology.regime import regime_of

__all__ = ["check", "in_order", "inputs_of"]

_SORTS = ("source", "stage", "sink")
_TYPES: Mapping[str, tuple[type, ...]] = {
    k.TEXT: (str,),
    k.WHOLE: (int,),
    k.NUMBER: (int, float),
    k.FLAG: (bool,),
    k.FUNCTION: (str,),
    k.TABLE: (dict,),
}
_AN_EXAMPLE = {
    k.TEXT: 'a text in quotes: "..."',
    k.TEXTS: 'a text or a list of texts: ["...", "..."]',
    k.WHOLE: "a whole number",
    k.NUMBER: "a number",
    k.FLAG: "true or false",
    k.DURATION: 'a duration: "100 ms", "10 seconds"',
    k.FUNCTION: 'a function: "package.module:name" or "file.py:name"',
    k.TABLE: "a table: { key = value }",
}


def check(document: Document) -> None:
    """Note everything that is wrong, and refuse the document if something is."""
    _keys(document, (), document.data, {key.name: key for key in k.TOP}, "a topology")
    _run(document)
    names: dict[str, str] = {}
    for sort, name, table in _members(document):
        _name(document, sort, name, names)
        _member(document, sort, name, table)
    if not document.problems:
        _inputs(document, names)
    document.refuse()
    in_order(document)
    document.refuse()


def _members(document: Document) -> Iterator[tuple[str, str, Any]]:
    for sort in _SORTS:
        tables = document.data.get(sort)
        if isinstance(tables, dict):
            for name, table in tables.items():
                yield sort, name, table


def _name(document: Document, sort: str, name: str, names: dict[str, str]) -> None:
    try:
        checked_name(name, sort)
    except PenstockError as error:
        document.problem((sort, name), error.message)
    if name in names:
        document.problem((sort, name), f"there is a {names[name]} named {name!r} already")
    names.setdefault(name, sort)


def _member(document: Document, sort: str, name: str, table: Any) -> None:
    path: Path = (sort, name)
    if not isinstance(table, dict):
        document.problem(path, f"{sort} {name!r} is a table: [{sort}.{name}]", value=True)
        return
    kind = table.get("type")
    known = k.KINDS[sort]
    if kind is None:
        document.problem(path, f"{sort} {name!r} lacks 'type': one of {', '.join(known)}")
        return
    if not isinstance(kind, str) or kind not in known:
        close = nearest(str(kind), known)
        document.problem(
            (*path, "type"),
            f"there is no {sort} of type {kind!r}{close} there are {', '.join(known)}",
            value=True,
        )
        return
    _keys(document, path, table, k.keys_of(sort, kind), f"{sort} {name!r} ({kind})")
    _more(document, path, table)


def _keys(
    document: Document, path: Path, table: Mapping[str, Any], known: Mapping[str, k.Key], what: str
) -> None:
    for name, value in table.items():
        key = known.get(name)
        if key is None:
            listed = ", ".join(sorted(known))
            document.problem(
                (*path, name), f"{what}: no key {name!r}{nearest(name, known)} there are {listed}"
            )
        else:
            _value(document, (*path, name), key, value, what)
    for key in known.values():
        if key.required and key.name not in table:
            document.problem(path, f"{what} lacks {key.name!r}: {key.about}")


def _value(document: Document, path: Path, key: k.Key, value: Any, what: str) -> None:
    if not _fits(key.value, value):
        document.problem(
            path, f"{what}: {key.name} is {_AN_EXAMPLE[key.value]}; got {value!r}", value=True
        )
    elif key.choices and value not in key.choices:
        close = nearest(value, key.choices)
        document.problem(
            path,
            f"{what}: {key.name} is not {value!r}{close} there are {', '.join(key.choices)}",
            value=True,
        )


def _fits(wanted: str, value: Any) -> bool:
    if wanted == k.TEXTS:
        texts = [value] if isinstance(value, str) else value
        return isinstance(texts, list) and bool(texts) and all(isinstance(t, str) for t in texts)
    if wanted == k.REGIME:
        return True  # looked at more closely later
    if wanted == k.DURATION:
        try:
            duration_us(value, "")
        except (PenstockError, TypeError):
            return False
        return not isinstance(value, bool)
    if isinstance(value, bool) and wanted != k.FLAG:
        return False
    return isinstance(value, _TYPES[wanted])


def _more(document: Document, path: Path, table: Mapping[str, Any]) -> None:
    """What a type alone does not say."""
    replicas = table.get("replicas", 1)
    if isinstance(replicas, int) and replicas < 1:
        document.problem((*path, "replicas"), f"replicas are 1 or more, not {replicas}", value=True)
    routing = table.get("routing")
    if isinstance(routing, str):
        try:
            routing_named(routing)
        except PenstockError as error:
            document.problem((*path, "routing"), error.message, value=True)
    if "regime" in table:
        try:
            regime_of(table["regime"])
        except PenstockError as error:
            document.problem((*path, "regime"), error.message, value=True)


def _run(document: Document) -> None:
    table = document.data.get("run")
    if not isinstance(table, dict):
        return
    known = [option.name for option in fields(RunSettings) if option.name != "tuning"]
    unknown = [name for name in table if name not in known]
    for name in unknown:
        document.problem(
            ("run", name),
            f"run: no option {name!r}{nearest(name, known)} there are {', '.join(known)}",
        )
    for name, value in table.items():
        if name not in unknown:
            try:
                RunSettings.checked({name: regime_of(value) if name == "regime" else value})
            except (PenstockError, TypeError, ValueError) as error:
                document.problem(("run", name), f"run: {error}", value=True)


# -- who feeds whom ------------------------------------------------------------------------------


def inputs_of(table: Mapping[str, Any]) -> list[str]:
    """The names that a stage or sink gets its rows from."""
    given = table.get("input", [])
    return [given] if isinstance(given, str) else list(given)


def _inputs(document: Document, names: Mapping[str, str]) -> None:
    givers = [name for name, sort in names.items() if sort != "sink"]
    read: set[str] = set()
    for sort, name, table in _members(document):
        for number, wanted in enumerate(inputs_of(table)):
            read.add(wanted)
            if wanted in givers:
                continue
            path: Path = (sort, name, "input")
            if isinstance(table["input"], list):
                path = (*path, number)
            is_sink = names.get(wanted) == "sink"
            why = "is a sink: nothing leaves it;" if is_sink else "is no source or stage"
            close = "" if is_sink else nearest(wanted, givers)
            document.problem(
                path,
                f"{sort} {name!r}: input {wanted!r} {why}{close} there are {', '.join(givers)}",
                value=True,
            )
        if sort == "stage" and table["type"] == "join" and len(inputs_of(table)) != 2:
            document.problem(
                (sort, name, "input"), f"stage {name!r} (join) has two inputs", value=True
            )
    for name in givers:
        if name not in read and not document.problems:  # else the name may just be misspelt
            document.problem(
                (names[name], name),
                f"{names[name]} {name!r} is not read by any operator: name it in an input",
            )


def in_order(document: Document) -> list[tuple[str, str, Mapping[str, Any]]]:
    """The members, each after those that feed it; a circle is refused."""
    left = {name: (sort, name, table) for sort, name, table in _members(document)}
    done: list[tuple[str, str, Mapping[str, Any]]] = []
    while left:
        ready = [name for name, (_, _, table) in left.items() if not _waits(inputs_of(table), left)]
        if not ready:
            circle = _circle(left)
            sort, name, _ = left[circle[0]]
            document.problem(
                (sort, name, "input"),
                f"stages feed each other in a circle: {' -> '.join([*circle, circle[0]])}; loops "
                "are written in Python, with stream.iterate()",
                value=True,
            )
            return done
        done += [left.pop(name) for name in ready]
    return done


def _waits(inputs: Iterable[str], left: Mapping[str, Any]) -> bool:
    return any(name in left for name in inputs)


def _circle(left: Mapping[str, tuple[str, str, Mapping[str, Any]]]) -> Sequence[str]:
    """Stages that feed each other, in the direction of the rows."""
    name = next(iter(left))
    path: list[str] = []
    while name not in path:
        path.append(name)
        name = next(one for one in inputs_of(left[name][2]) if one in left)
    return path[path.index(name) :][::-1]
