"""The structure of JSON texts, all rows of a column at once.

Theory of operation.  Quotes that no backslash escapes come in pairs within a row: they give the
strings.  Outside of strings a byte is a bracket, a colon, a comma, a blank or a part of a scalar.
Openers less closers before a token are its depth.  Sorted by depth (a stable sort), what stands in
one container stands together, between its opener and its closer; an opener takes part twice, as a
value in the container around it and as the beginning of its own.  So who follows whom in a
container is who follows whom in that order, and a table says what may.  A row with anything else
is malformed as a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.bytes import spread

__all__ = ["ARRAY", "OBJECT", "SCALAR", "STRING", "JsonIndex"]

STRING, SCALAR, OBJECT, ARRAY = 1, 2, 3, 4
"""Kinds of values."""

_BLANK, _OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY, _COLON, _COMMA, _PART, _QUOTE = (
    range(9)
)
_CLASSES = np.full(256, _PART, np.uint8)
_CLASSES[[9, 10, 13, 32]] = _BLANK
for _byte, _class in zip(b'{}[]:,"', (1, 2, 3, 4, 5, 6, 8), strict=True):
    _CLASSES[_byte] = _class

# Roles of entries in a container.
_OPENS, _CLOSES, _IS_COLON, _IS_COMMA, _KEY, _VALUE = range(6)
_ALLOWED = np.zeros((3, 6, 6), bool)
"""By container (0 none, 1 object, 2 array): may the second role follow the first?"""
for _one, _other in (
    (_OPENS, _KEY), (_OPENS, _CLOSES), (_KEY, _IS_COLON), (_IS_COLON, _VALUE), (_VALUE, _IS_COMMA),
    (_VALUE, _CLOSES), (_IS_COMMA, _KEY),
):  # fmt: skip
    _ALLOWED[1, _one, _other] = True
for _one, _other in (
    (_OPENS, _VALUE), (_OPENS, _CLOSES), (_VALUE, _IS_COMMA), (_VALUE, _CLOSES), (_IS_COMMA, _VALUE)
):  # fmt: skip
    _ALLOWED[2, _one, _other] = True
_NUMBER = r"^(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)$"
_DEPTH_MAX = 1000
"""Deeper texts are malformed, as for Spark's parser."""
_NOT_FINITE = r"^(?:NaN|[+-]?INF|[+-]?Infinity)$"


class JsonIndex:
    """Values of JSON texts by number, with what each is, where it stands, and whose part it is."""

    def __init__(self, texts: pa.Array, *, strict: bool = False) -> None:
        """``strict`` takes no control characters in strings, and NaN and infinities as numbers:
        that is how Spark's from_json reads; its other functions do the opposite."""
        self._strict = strict
        ended = pc.binary_join_element_wise(pc.fill_null(texts, ""), "\n", "")
        self.data, _, self._rows = spread(ended)
        self.bad = np.zeros(len(texts), bool)
        classes, openings, closings = self._strings()
        kinds, starts, stops = self._tokens(classes, openings, closings)
        self._arrange(kinds, starts, stops)
        self._check_scalars()

    # -- bytes to tokens -------------------------------------------------------------------------

    def _strings(self) -> tuple[Any, Any, Any]:
        """The class of each byte (0 inside strings), and where strings begin and end."""
        data = self.data
        quotes = np.flatnonzero(data == 34)
        if (data == 92).any():
            quotes = quotes[~self._escaped(quotes)]
        rows = self._rows[quotes]
        count = np.bincount(rows, minlength=len(self.bad))
        self.bad |= count % 2 == 1
        quotes, rows = quotes[~self.bad[rows]], rows[~self.bad[rows]]
        openings, closings = quotes[0::2], quotes[1::2]
        classes = _CLASSES[data]
        inside = np.zeros(len(data) + 1, np.int8)
        inside[openings + 1] = 1
        inside[closings] -= 1
        hidden = np.cumsum(inside[:-1], dtype=np.int8).view(bool)
        controls = hidden & (data < 32)
        if self._strict and controls.any():
            places = np.flatnonzero(controls)
            self.bad[self._rows[places]] = True
        self.solid = hidden | (classes != _BLANK)
        """Bytes that are no blanks between tokens."""
        classes[hidden] = _BLANK
        classes[closings] = _BLANK
        return classes, openings, closings

    def _escaped(self, places: Any) -> Any:
        """Whether an odd number of backslashes stands before each place."""
        plain = np.where(self.data != 92, np.arange(len(self.data)), -1)
        last = np.maximum.accumulate(plain)
        before = np.where(places > 0, last[np.maximum(places - 1, 0)], -1)
        return (places - 1 - before) % 2 == 1

    def _tokens(self, classes: Any, openings: Any, closings: Any) -> tuple[Any, Any, Any]:
        """Class, begin and end of each token."""
        part = classes == _PART
        edges = np.flatnonzero(part[1:] != part[:-1]) + 1
        if len(part) and part[0]:
            edges = np.concatenate([[0], edges])
        scalar_starts, scalar_ends = edges[0::2], edges[1::2]
        single = np.flatnonzero((classes >= _OPEN_OBJECT) & (classes <= _COMMA))
        starts = np.concatenate([single, scalar_starts, openings])
        stops = np.concatenate([single + 1, scalar_ends, closings + 1])
        order = np.argsort(starts, kind="stable")
        starts, stops = starts[order], stops[order]
        return classes[starts], starts, stops

    # -- tokens to values ------------------------------------------------------------------------

    def _arrange(self, kinds: Any, starts: Any, stops: Any) -> None:
        rows = self._rows[starts]
        opens = (kinds == _OPEN_OBJECT) | (kinds == _OPEN_ARRAY)
        closes = (kinds == _CLOSE_OBJECT) | (kinds == _CLOSE_ARRAY)
        depth = np.cumsum(opens.astype(np.int64) - closes)
        first = np.searchsorted(rows, np.arange(len(self.bad)))
        before = np.concatenate([[0], depth])[first]
        depth = depth - before[rows]
        # A value ends where its depth is 0 again; what follows is ignored, as in Spark.
        ends = np.flatnonzero(depth <= 0)
        last = np.full(len(self.bad), -1)
        last[rows[ends][::-1]] = ends[::-1]
        self.bad |= last < 0
        inner = depth + closes  # of a container's own tokens, what is inside
        beyond = np.arange(len(rows)) > last[rows]
        self.bad[rows[(inner > _DEPTH_MAX) & ~beyond]] = True
        self.bad[rows[(inner < closes) & ~beyond]] = True
        wrong = self.bad[rows] | beyond
        # Two entries for an opener: first a value outside, then the beginning inside.
        kept = np.flatnonzero(~wrong)
        times = 1 + opens[kept]
        token = np.repeat(kept, times)
        as_value = np.zeros(len(token), bool)
        as_value[(np.cumsum(times) - times)[opens[kept]]] = True
        level = inner[token] - as_value
        order = np.argsort(level.astype(np.int16), kind="stable")
        token, as_value, level = token[order], as_value[order], level[order]
        self._connect(kinds, starts, stops, rows, token, as_value, level)

    def _connect(
        self, kinds: Any, starts: Any, stops: Any, rows: Any, token: Any, as_value: Any, level: Any
    ) -> None:
        kind, row = kinds[token], rows[token]
        size = len(token)
        place = np.arange(size)
        own = ~as_value & ((kind == _OPEN_OBJECT) | (kind == _OPEN_ARRAY))
        opener = np.maximum.accumulate(np.where(own, place, -1)) if size else place
        inside = level > 0
        container = np.where(inside, np.where(kind[opener] == _OPEN_OBJECT, 1, 2), 0)
        closing = ~as_value & ((kind == _CLOSE_OBJECT) | (kind == _CLOSE_ARRAY))
        role = np.full(size, _VALUE)
        role[own] = _OPENS
        role[closing] = _CLOSES
        role[kind == _COLON], role[kind == _COMMA] = _IS_COLON, _IS_COMMA
        before = np.concatenate([[_OPENS], role[:-1]]) if size else role
        is_key = (container == 1) & (kind == _QUOTE) & ((before == _OPENS) | (before == _IS_COMMA))
        role[is_key] = _KEY
        self._check(role, container, row, level, kind, opener, closing)
        values = np.flatnonzero(role == _VALUE)
        self._collect(
            kind,
            starts[token],
            stops[token],
            row,
            level,
            opener,
            own,
            role,
            values,
            token,
            as_value,
        )

    def _check(
        self, role: Any, container: Any, row: Any, level: Any, kind: Any, opener: Any, closing: Any
    ) -> None:
        """Mark the rows in which something follows that must not."""
        if not len(role):
            self.bad[:] = True
            return
        follows = np.ones(len(role), bool)
        follows[1:] = _ALLOWED[container[1:], role[:-1], role[1:]]
        free = (role == _OPENS) | (container == 0)
        self.bad[row[~(follows | free)]] = True
        # Outside of containers there is one value, and nothing else.
        root = level == 0
        self.bad[row[root & (role != _VALUE)]] = True
        self.bad |= np.bincount(row[root], minlength=len(self.bad)) != 1
        self.bad[row[closing & (kind != kind[opener] + 1)]] = True

    def _collect(
        self, kind: Any, starts: Any, stops: Any, row: Any, level: Any, opener: Any, own: Any,
        role: Any, values: Any, token: Any, as_value: Any,
    ) -> None:  # fmt: skip
        number = np.full(len(kind), -1)
        number[values] = np.arange(len(values))
        # The value that an opener is, by the token both come from.
        of_token = np.full(int(token.max(initial=-1)) + 1, -1)
        of_token[token[values]] = number[values]
        self.row = row[values]
        self.kind = np.array([0, OBJECT, 0, ARRAY, 0, 0, 0, SCALAR, STRING])[kind[values]]
        self.start, self.stop = starts[values], stops[values]
        inside = level[values] > 0
        self.parent = np.where(inside, of_token[token[opener[values]]], -1)
        closers = np.flatnonzero(role == _CLOSES)
        self.stop[of_token[token[opener[closers]]]] = stops[closers]
        keyed = values[inside & (role[np.maximum(values - 2, 0)] == _KEY)]
        self.key_start = np.full(len(values), -1)
        self.key_stop = np.full(len(values), -1)
        self.key_start[number[keyed]] = starts[keyed - 2] + 1
        self.key_stop[number[keyed]] = stops[keyed - 2] - 1
        self.root = np.full(len(self.bad), -1)
        roots = np.flatnonzero(self.parent < 0)
        self.root[self.row[roots]] = roots
        self.root[self.bad] = -1

    def _check_scalars(self) -> None:
        found = np.flatnonzero(self.kind == SCALAR)
        texts = self.texts(found)
        pattern = f"{_NUMBER}|{_NOT_FINITE}" if self._strict else _NUMBER
        good = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
        self.bad[self.row[found[~good]]] = True
        self.root[self.bad] = -1

    # -- reading ---------------------------------------------------------------------------------

    def child(self, nodes: Any, key: str, *, first: bool = False) -> Any:
        """The value of a key in each object; -1 where there is none.

        Of several the last, or the ``first`` that is not null.
        """
        wanted = np.frombuffer(key.encode(), np.uint8)
        found = np.flatnonzero(self.key_stop - self.key_start == len(wanted))
        found = found[self.key_start[found] >= 0]
        spans = self.key_start[found][:, None] + np.arange(len(wanted))
        found = found[(self.data[spans] == wanted).all(axis=1)]
        if first:
            found = found[pc.not_equal(self.texts(found), "null").to_numpy(zero_copy_only=False)]
            found = found[::-1]
        by_parent = np.full(len(self.kind) + 1, -1)
        by_parent[self.parent[found]] = found
        by_parent[-1] = -1
        return by_parent[nodes]

    def children(self, nodes: Any) -> tuple[Any, Any]:
        """The values in each container, one after the other, and how many each has."""
        total = len(self.kind)
        inside = self.parent >= 0
        count = np.bincount(self.parent[inside], minlength=total + 1)
        first = np.zeros(total + 1, np.int64)
        members = np.flatnonzero(inside)
        first[self.parent[members][::-1]] = members[::-1]
        sizes = np.where(nodes >= 0, count[nodes], 0)
        owner = np.repeat(np.arange(len(nodes)), sizes)
        index = np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]
        return first[nodes][owner] + index, sizes

    def kinds(self, nodes: Any) -> Any:
        """The kind of each value, 0 where there is none."""
        return np.where(nodes >= 0, np.append(self.kind, 0)[nodes], 0)

    def texts(self, nodes: Any, *, inner: bool = False) -> pa.Array:
        """The text of each value as it is written; null where there is none."""
        there = nodes >= 0
        starts, stops = (np.append(one, 0)[nodes] for one in (self.start, self.stop))
        if inner:
            starts, stops = starts + 1, stops - 1
        return self.spans(np.where(there, starts, 0), np.where(there, stops, 0), ~there)

    def spans(self, starts: Any, stops: Any, missing: Any = None, data: Any = None) -> pa.Array:
        """Parts of the data (or of other ``data``) as texts."""
        data = self.data if data is None else data
        lengths = stops - starts
        offsets = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[places])]
        made = pa.Array.from_buffers(pa.large_string(), len(starts), buffers).cast(pa.string())
        if missing is None or not missing.any():
            return made
        return pc.if_else(pa.array(~missing), made, pa.scalar(None, pa.string()))
