"""What commands print: JSON for machines on standard output, the rest on standard error."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.errors import PenstockError, UsageError
from penstock.terminal import stderr

__all__ = [
    "print_json",
    "print_rows",
    "print_table",
    "reporting_errors",
    "set_up_logging",
]


def print_json(result: dict[str, Any]) -> None:
    """One object on standard output."""
    print(json.dumps(result, default=str))


def print_table(title: str, rows: dict[str, Any]) -> None:
    """Names and values, for people."""
    table = Table(title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(name.replace("_", " "), _readable(value))
    Console().print(table)


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows under the names of their columns, for people."""
    table = Table(title=title)
    for name in rows[0] if rows else ():
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*map(_readable, row.values()))
    Console().print(table)


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_readable(part)}" for key, part in value.items())
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn an error into a message and an exit status."""
    try:
        yield
    except PenstockError as error:
        traceback = error.parameters.get("traceback")
        if traceback:
            print(str(traceback).rstrip(), file=sys.stderr)
        stderr.print(f"[red]{error.condition}[/red] ", end="")
        stderr.print(error.message, markup=False, highlight=False)
        failed_in_flow = "stage" in error.parameters and "epoch" in error.parameters
        sys.exit(2 if isinstance(error, UsageError) and not failed_in_flow else 1)
    except KeyboardInterrupt:
        stderr.print("interrupted")
        sys.exit(130)


def set_up_logging(verbose: bool) -> None:
    """Warnings (or with ``--verbose`` everything of ours) to standard error."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if verbose:
        logging.getLogger("penstock").setLevel(logging.INFO)
