"""Rows of a vertex's state that a checkpoint need not write again.

Most state is kept in Arrow tables that never change, or that only get more rows at their ends.  A
vertex gives such a table together with its *lineage*: an object that stays the same as long as the
rows that were there stay as they are.  A writer that has the first thousand rows of a
lineage writes only what came after them.  The table is made when and where it is needed, so that
taking a state costs the same however large it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

__all__ = ["Grown", "Lineage", "table_of"]


class Lineage:
    """What a table that only grows is known by, for tables that are not an object of their own."""


class Grown:
    """Rows, and what they are known by.

    >>> rows = Grown.of(pa.table({"n": [1, 2]}), Lineage())
    >>> rows.rows, rows.table().num_rows
    (2, 2)
    """

    def __init__(self, lineage: object | None, rows: int, make: Callable[[], pa.Table]) -> None:
        self.lineage = lineage
        """None: nothing is known of these rows, they are written every time."""
        self.rows = rows
        self._make = make

    @classmethod
    def of(cls, table: pa.Table, lineage: object | None) -> Grown:
        """A table that is there already."""
        return cls(lineage, table.num_rows, lambda: table)

    def table(self) -> pa.Table:
        """The rows; may be called in any thread, at any time."""
        return self._make()


def table_of(rows: Any) -> pa.Table:
    """A table, of a :class:`Grown` or as it is."""
    return rows.table() if isinstance(rows, Grown) else rows
