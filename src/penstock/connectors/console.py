"""The console sink: every epoch's first rows, printed on the driver."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.connectors.driver import DriverSink
from penstock.errors import SettingsError

__all__ = ["Console"]


class Console(DriverSink):
    """Prints at most ``rows`` rows of every epoch that has any."""

    kind = "console"

    def __init__(self, rows: int = 20) -> None:
        if not isinstance(rows, int) or rows < 0:
            raise SettingsError(f"console: rows must be a number from 0 up, got {rows!r}")
        self.rows = rows

    def describe(self) -> str:
        return f"rows={self.rows}"

    def publish(self, epoch: int, rows: pa.Table) -> None:
        shown = rows.slice(0, self.rows).to_pylist()
        title = f"epoch {epoch}: {rows.num_rows} row{'' if rows.num_rows == 1 else 's'}"
        if len(shown) < rows.num_rows:
            title += f", the first {len(shown)}"
        try:
            _print_rich(title, rows.schema.names, shown)
        except ImportError:
            print("\n".join([title, *map(str, shown)]), flush=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return Console, (self.rows,)


def _print_rich(title: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in names:
        table.add_column(Text(name))
    for row in rows:
        # As text: what looks like markup in the user's data is data.
        table.add_row(*[Text("null" if row[name] is None else str(row[name])) for name in names])
    console = RichConsole()
    console.print(title, highlight=False)
    console.print(table)
