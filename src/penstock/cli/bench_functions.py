"""``penstock bench functions``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import print_json, print_rows, set_up_logging

__all__ = ["bench_functions_command"]


def bench_functions_command(
    rows: Annotated[
        int, typer.Option(min=1000, help="How many rows the columns have.")
    ] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="How often each is timed.")] = 3,
    only: Annotated[
        str | None, typer.Option(help="Only expressions with this text in them.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say more on standard error.")] = False,
) -> None:
    """The time of each function on a column of rows, beside Spark's, with one thread each."""
    from pyspark.sql import functions

    from penstock.bench.functions import bench_functions

    set_up_logging(verbose)
    result = bench_functions(functions, rows, repeats, only)
    if json:
        print_json(result)
        return
    print_rows(f"{rows:,} rows; median ratio {result['median_ratio']:.2f}", result["functions"])
