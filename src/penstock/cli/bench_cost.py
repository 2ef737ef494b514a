"""``penstock bench cost``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import print_json, print_rows, set_up_logging
from penstock.errors import SettingsError

__all__ = ["bench_cost_command"]


def bench_cost_command(
    flows: Annotated[str, typer.Option(help="Which flows, with commas.")] = "sum,join,chain,loop",
    rates: Annotated[str, typer.Option(help="Rows a second, with commas; 0: at rest.")] = (
        "0,100,20000,200000"
    ),
    hosts: Annotated[str, typer.Option(help="Numbers of hosts, with commas.")] = "4",
    seconds: Annotated[float, typer.Option(min=3, help="How long each is measured.")] = 15,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say more.")] = False,
) -> None:
    """How many cores a flow uses, at rest and at given rates.

    The whole system counts: the driver, Spark's JVM and the hosts.
    """
    from penstock.bench.cost import FLOWS, bench_cost

    set_up_logging(verbose)
    names = flows.split(",")
    for name in names:
        if name not in FLOWS:
            raise SettingsError(f"--flows {name!r}: there are {', '.join(FLOWS)}")
    found = bench_cost(names, _numbers("--rates", rates, 0), _numbers("--hosts", hosts, 1), seconds)
    if json:
        print_json({"cost": found})
    else:
        print_rows("What a flow costs", found)


def _numbers(option: str, text: str, least: int) -> list[int]:
    """Numbers from a list with commas.

    >>> _numbers("--hosts", "1,4", 1)
    [1, 4]
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"{option} {text!r}: write it as 1,4,8") from error
    if min(numbers) < least:
        raise SettingsError(f"{option} {text!r}: at least {least}")
    return numbers
