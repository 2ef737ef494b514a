"""What is in a flow's store: ``penstock status``, ``rollback`` and ``explain-recovery``."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import print_json
from penstock.errors import SettingsError
from penstock.terminal import stderr

__all__ = ["explain_recovery", "rollback", "status"]

Store = Annotated[str, typer.Argument(metavar="STORE", help="The checkpointLocation of the flow.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
ANSWER_S = 90.0


def status(store: Store, json: Json = False) -> None:
    """Say what a flow's store holds: spans, low-watermarks, what is published, who runs it.

    It only reads, and works on the store of a running flow as on that of one that has ended.
    """
    from penstock.engine.store.store_view import StoreView

    found = StoreView(store).status()
    if json:
        print_json(found)
        return
    console = Console()
    runs = f"runs: {found['driver']}" if found["running"] else "does not run"
    console.print(f"Flow {found['flow']} ({found['id']}) {runs}", highlight=False)
    oldest = found["oldestRollback"]
    back = "nowhere" if oldest is None else f"epoch {oldest} or later"
    console.print(
        f"low-watermark {found['low']}, can go back to {back}, {_bytes(found['bytes'])} in all",
        highlight=False,
    )
    if found["rollbackTo"] is not None:
        console.print(f"the next start goes back to epoch {found['rollbackTo']} first")
    table = Table("stage", "shard", "kind", "regime", "kept", "low", "bytes")
    for stage in found["stages"]:
        for number, shard in enumerate(stage["shards"]):
            first = number == 0
            table.add_row(
                "\n".join(stage["stages"]) if first else "",
                str(number),
                stage["kind"] if first else "",
                stage["regime"] if first else "",
                _kept(shard),
                str(shard["low"]),
                _bytes(shard["bytes"]) if "bytes" in shard else "",
            )
    console.print(table)


def rollback(
    store: Store,
    to: Annotated[int, typer.Option(min=-1, help="The epoch whose end to go back to.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would happen, per stage.")
    ] = False,
    json: Json = False,
) -> None:
    """Let a flow go back to the end of an epoch, and on from there.

    A running flow does it at once. Otherwise the store is marked, and the next start goes back
    first. What sinks have published stays, and is not published again.
    """
    from penstock.engine.driver.command_channel import call, find_driver
    from penstock.engine.store.store_view import StoreView

    view = StoreView(store)
    running = view.holder() is not None
    if running:
        if not json:
            stderr.print("asking the flow's driver ...")
        asked = {"to": to, "dryRun": dry_run}
        rows = call(find_driver(store), "rollback", timeout_s=ANSWER_S, **asked)
    else:
        rows = view.preview(to) if dry_run else view.ask_for_rollback(to)
    done = "nothing" if dry_run else "rolled back" if running else "marked"
    if json:
        print_json({"to": to, "running": running, "done": done, "stages": rows})
        return
    console = Console()
    console.print(_rows_table(rows))
    said = {
        "nothing": "nothing was changed (--dry-run)",
        "rolled back": f"the flow has gone back to epoch {to}",
        "marked": f"the next start goes back to epoch {to} first",
    }
    console.print(said[done])


def explain_recovery(
    store: Store,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only the newest recoveries, this many.")
    ] = None,
    json: Json = False,
) -> None:
    """Tell a flow's recoveries: who was lost and why, who restarted from where, what it took.

    The start of a flow is a recovery, too: of all nodes, from what is durable.
    """
    from penstock.engine.store.store_view import StoreView
    from penstock.engine.store.story_log import read_story, told_recoveries

    view = StoreView(store)
    told = told_recoveries(read_story(view.path))
    if not told:
        raise SettingsError(
            f"{store} has no story of a recovery yet: it begins with the next start of the flow",
            path=store,
        )
    told = told[-last:] if last else told
    if json:
        print_json({"flow": view.description.flow, "recoveries": told})
        return
    for recovery in told:
        print("\n".join(_told(recovery)))


def _told(recovery: dict[str, Any]) -> list[str]:
    """A recovery, for people; times are milliseconds since its beginning."""
    at = datetime.fromtimestamp(recovery["begun_us"] / 1e6).astimezone()
    took = f"{recovery['took_ms']:,.1f} ms" if recovery["recovered"] else "it is not over"
    rounds = ", ".join(map(str, recovery["rounds"]))
    steps = ", ".join(f"{step} {ms:,.1f}" for step, ms in recovery["steps_ms"].items())
    lines = [f"{line['ms']:>10,.1f}  {line['text']}" for line in recovery["lines"]]
    return [f"{at:%Y-%m-%d %H:%M:%S}, round {rounds}: {took} ({steps})", *lines, ""]


def _rows_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("stage", "from", "to", "restores", "bytes", "works again on")
    for row in rows:
        table.add_row(
            row["stage"],
            "" if row["from"] is None else str(row["from"]),
            str(row["to"]),
            row["restores"],
            _bytes(row["bytes"]) if row["bytes"] else "",
            row["replays"],
        )
    return table


def _kept(shard: dict[str, Any]) -> str:
    if "published" in shard:
        return f"published {shard['published']}"
    if "boundaries" in shard:
        return f"{shard['boundaries']} boundaries, the last of epoch {shard['epoch']}"
    return ", ".join("start" if epoch < 0 else str(epoch) for epoch in shard.get("kept", ()))


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
