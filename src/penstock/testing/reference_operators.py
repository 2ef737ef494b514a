"""Slow, obvious models of the stateful operators, in plain Python, to compare the fast ones with.

Rows are dicts, times are integers (microseconds), epochs are lists of rows.  Each model returns,
per epoch, the rows that the operator sends at its end.  The last watermark is one past everything:
the models run one more, empty epoch to flush.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from penstock.operators.terms import Aggregate
from penstock.testing.scatter import END

__all__ = ["distinct", "join", "running", "sessions", "windows"]

Row = dict[str, Any]
Key = tuple[Any, ...]


def aggregated(aggregates: Sequence[Aggregate], rows: Sequence[Row]) -> Row:
    """The aggregates of some rows."""
    out: Row = {}
    for one in aggregates:
        if one.column == "*":
            out[one.name] = len(rows)
            continue
        values = [row[one.column] for row in rows if row[one.column] is not None]
        if one.function == "count":
            out[one.name] = len(values)
        elif not values:
            out[one.name] = None
        elif one.function in ("min", "max"):
            out[one.name] = (min if one.function == "min" else max)(values)
        else:
            total = math.fsum(values) if isinstance(values[0], float) else sum(values)
            out[one.name] = total if one.function == "sum" else total / len(values)
    return out


def _null_last(key: Key) -> Key:
    return tuple((value is None, value) for value in key)


def windows(
    epochs: Sequence[Sequence[Row]],
    watermarks: Sequence[int | None],
    size: int,
    slide: int,
    start: int,
    lateness: int,
    keys: Sequence[str],
    aggregates: Sequence[Aggregate],
) -> tuple[list[list[Row]], list[list[Row]]]:
    """Tumbling and sliding windows: results and late rows, per epoch."""
    held: dict[tuple[int, Key], list[Row]] = {}
    results, late = [], []
    before: int | None = None
    for rows, mark in zip([*epochs, []], [*watermarks, END], strict=True):
        now = before if mark is None else mark
        touched, gone = set(), []
        for row in rows:
            last = (row["t"] - start) // slide * slide + start
            spans = [w for w in range(last, last - size, -slide) if w + size > row["t"]]
            taken = [w for w in spans if before is None or w + size + lateness > before]
            if not taken:
                gone.append(row)
            for at in taken:
                place = at, tuple(row[key] for key in keys)
                held.setdefault(place, []).append(row)
                touched.add(place)
        due = [
            place
            for place in held
            if now is not None
            and place[0] + size <= now
            and (place in touched or before is None or place[0] + size > before)
        ]
        due.sort(key=lambda place: (place[0], _null_last(place[1])))
        results.append(
            [
                {"start": at, "end": at + size, **dict(zip(keys, key, strict=True))}
                | aggregated(aggregates, held[at, key])
                for at, key in due
            ]
        )
        late.append(gone)
        if now is not None:
            held = {p: r for p, r in held.items() if p[0] + size + lateness > now}
        before = now
    return results, late


def sessions(
    epochs: Sequence[Sequence[Row]],
    watermarks: Sequence[int | None],
    gap: int,
    lateness: int,
    keys: Sequence[str],
    aggregates: Sequence[Aggregate],
) -> tuple[list[list[Row]], list[list[Row]]]:
    """Session windows: results and late rows, per epoch."""
    held: list[tuple[Key, list[Row]]] = []
    results, late = [], []
    before: int | None = None
    for rows, mark in zip([*epochs, []], [*watermarks, END], strict=True):
        now = before if mark is None else mark
        fresh = {id(row) for row in rows}
        by_key: dict[Key, list[Row]] = {}
        for key, members in [*held, *((tuple(row[k] for k in keys), [row]) for row in rows)]:
            by_key.setdefault(key, []).extend(members)
        merged: list[tuple[Key, list[Row]]] = []
        for key, members in by_key.items():
            last = None
            for row in sorted(members, key=lambda row: row["t"]):
                if last is None or row["t"] - last > gap:
                    merged.append((key, []))
                merged[-1][1].append(row)
                last = row["t"]
        end = _session_end(gap)
        gone = [one for one in merged if before is not None and end(one) + lateness <= before]
        late.append([row for _, members in gone for row in members])
        held = [one for one in merged if one not in gone]
        due = [
            one
            for one in held
            if now is not None
            and end(one) <= now
            and (before is None or end(one) > before or any(id(row) in fresh for row in one[1]))
        ]
        due.sort(key=lambda one: (one[1][0]["t"], _null_last(one[0])))
        results.append(
            [
                {"start": members[0]["t"], "end": members[-1]["t"] + gap}
                | dict(zip(keys, key, strict=True))
                | aggregated(aggregates, members)
                for key, members in due
            ]
        )
        if now is not None:
            held = [one for one in held if end(one) + lateness > now]
        before = now
    return results, late


def _session_end(gap: int) -> Callable[[tuple[Key, list[Row]]], int]:
    return lambda session: int(session[1][-1]["t"]) + gap


def running(
    epochs: Sequence[Sequence[Row]], keys: Sequence[str], aggregates: Sequence[Aggregate]
) -> list[list[Row]]:
    """Running aggregates: the changed groups, per epoch."""
    held: dict[Key, list[Row]] = {}
    results = []
    for rows in epochs:
        changed = {tuple(row[key] for key in keys) for row in rows}
        for row in rows:
            held.setdefault(tuple(row[key] for key in keys), []).append(row)
        results.append(
            [
                dict(zip(keys, key, strict=True)) | aggregated(aggregates, held[key])
                for key in sorted(changed, key=_null_last)
            ]
        )
    return results


def join(
    epochs: Sequence[tuple[Sequence[Row], Sequence[Row]]],
    watermarks: Sequence[int | None],
    within: int,
    how: str,
    times: tuple[str, str],
) -> list[list[tuple[Row, Row | None]]]:
    """Pairs (with None: left rows that stayed alone) per epoch, in no fixed order; key ``k``."""
    held: tuple[list[Row], list[Row]] = ([], [])
    matched: set[int] = set()
    results = []
    before: int | None = None
    for inputs, mark in zip([*epochs, ([], [])], [*watermarks, END], strict=True):
        now = before if mark is None else mark
        fresh = [
            [row for row in rows if before is None or row[time] >= before - within]
            for rows, time in zip(inputs, times, strict=True)
        ]
        pairs: list[tuple[Row, Row | None]] = []
        new = {id(row) for rows in fresh for row in rows}
        held[0].extend(fresh[0])
        held[1].extend(fresh[1])
        for left in held[0]:
            for right in held[1]:
                near = abs(left[times[0]] - right[times[1]]) <= within
                same = left["k"] is not None and left["k"] == right["k"]
                if near and same and (id(left) in new or id(right) in new):
                    pairs.append((left, right))
                    matched.add(id(left))
        if now is not None:
            for left in held[0]:
                if left[times[0]] < now - within and id(left) not in matched and how == "left":
                    pairs.append((left, None))
            for rows, time in zip(held, times, strict=True):
                rows[:] = [row for row in rows if row[time] >= now - within]
        results.append(pairs)
        before = now
    return results


def distinct(
    epochs: Sequence[Sequence[Row]],
    watermarks: Sequence[int | None],
    within: int | None,
    keys: Sequence[str],
    order: Callable[[Row], Any],
) -> list[list[Row]]:
    """The first rows of each key, per epoch, in the order of ``order``."""
    kept: list[Row] = []
    results = []
    before: int | None = None
    for rows, mark in zip([*epochs, []], [*watermarks, END], strict=True):
        now = before if mark is None else mark
        sent: list[Row] = []
        for row in sorted(rows, key=order):
            if within is not None and before is not None and row["t"] < before:
                continue
            twins = [one for one in kept if all(one[key] == row[key] for key in keys)]
            if within is not None:
                # The rows of this epoch come in the order of time, whatever was kept before.
                twins = [one for one in twins if abs(one["t"] - row["t"]) <= within]
            if not twins:
                sent.append(row)
                kept.append(row)
        results.append(sent)
        before = now
    return results
