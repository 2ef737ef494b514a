"""``penstock chaos``.

Exit status: 0 if the published tables are right and nobody restarted who need not, else 1.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.output import errors, print_json, print_table, set_up_logging
from penstock.errors import SettingsError

__all__ = ["chaos"]


def chaos(
    kills: Annotated[int, typer.Option(min=1, help="How many processes are killed.")] = 20,
    seconds: Annotated[
        float | None,
        typer.Option(min=10, help="How long events are made; by default as long as kills take."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Chooses the victims.")] = 1,
    rate: Annotated[float, typer.Option(min=1000, help="Events per second.")] = 4_000,
    standby: Annotated[int, typer.Option(min=0, help="Hosts that are kept ready.")] = 1,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Kill executor JVMs of a standalone cluster instead.")
    ] = False,
    connections: Annotated[
        bool, typer.Option("--connections", help="Cut live connections instead: nobody dies.")
    ] = False,
    driver: Annotated[
        bool,
        typer.Option(
            "--driver", help="Kill the driver instead, and start it again with the same command."
        ),
    ] = False,
    freeze: Annotated[
        int, typer.Option(min=0, help="Freeze so many processes instead, and let them go on.")
    ] = 0,
    frozen: Annotated[
        float, typer.Option(min=1, help="With --freeze: seconds that each is frozen.")
    ] = 10.0,
    takeover: Annotated[
        bool,
        typer.Option(
            "--takeover",
            help="Kill replicas of a stage whose states a host that stands by follows.",
        ),
    ] = False,
    state_mb: Annotated[
        float, typer.Option(min=1, help="With --takeover: all states together.")
    ] = 100.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say more.")] = False,
) -> None:
    """Kill processes of a running flow with kill -9 and check that nothing is lost or doubled.

    The flow has sources, a sharder, a windowed count, a join, an order-sensitive stage, a loop and
    Parquet sinks; nodes of each kind are killed in turn, under load. With --driver it runs in a
    process of its own, which is killed at random moments; resume_s is from the moment Spark is up
    again until the first new epoch is published. With --freeze processes are stopped for a while
    (SIGSTOP, SIGCONT); moved_ms is from the signal until their nodes are open on other hosts. With
    --takeover a flow with one keyed stage of three replicas runs instead; takeover_ms is from the
    kill until the keys are served again.
    """
    from penstock.bench.chaos import Chaos
    from penstock.bench.chaos import chaos as run
    from penstock.bench.chaos_driver import kill_drivers
    from penstock.bench.takeover import Takeover
    from penstock.bench.takeover import takeover as run_takeover

    if cluster + connections + driver + bool(freeze) + takeover > 1:
        raise SettingsError(
            "chaos: give one of --cluster, --connections, --driver, --freeze and --takeover"
        )
    set_up_logging(verbose)
    if driver:
        result = kill_drivers(kills, rate, seed)
    elif takeover:
        result = run_takeover(Takeover(kills, state_mb, seed, rate))
    else:
        result = run(
            Chaos(
                kills,
                seconds,
                seed,
                rate,
                cluster,
                connections,
                standby=standby,
                freezes=freeze,
                frozen_s=frozen,
            )
        )
    if json:
        print_json(result)
    else:
        shown = {name: value for name, value in result.items() if name != "each"}
        print_table("Chaos", shown)
    others = result.get("other_restarted") or result.get("restarted")
    wanted = result["equal"] and not others
    if not wanted:
        errors.print("[red]The tables are wrong, or too many nodes were restarted.[/red]")
        sys.exit(1)
