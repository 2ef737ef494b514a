"""``penstock dev``: servers on this machine to try flows with, ended by their process ids."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import print_json
from penstock.errors import SettingsError

__all__ = ["dev_app"]

dev_app = typer.Typer(help="Start and stop servers on this machine.", no_args_is_help=True)

WAIT_S = 20.0
POLL_S = 0.05


class Server(StrEnum):
    """What can be started."""

    kafka = "kafka"


Name = Annotated[Server, typer.Argument(help="Which server.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@dev_app.command()
def up(
    name: Name,
    port: Annotated[int, typer.Option(min=1, help="The port on 127.0.0.1.")] = 9092,
    json: Json = False,
) -> None:
    """Start a server on loopback, unless it runs; it goes on until ``penstock dev down``.

    kafka: one broker in KRaft mode.  Its jars are fetched by Maven once; what it holds is kept in
    ~/.cache/penstock/dev/kafka.
    """
    from penstock.testing.kafka_broker import KafkaBroker

    folder = _folder(name)
    pid = _running(folder)
    broker = KafkaBroker(folder, port)
    if pid is None:
        broker.start(outlives=True)
        pid = broker.pid
        (folder / "pid").write_text(f"{pid} {broker.address}\n")
    address = (folder / "pid").read_text().split()[1]
    if json:
        print_json({"server": str(name), "address": address, "pid": pid})
    else:
        print(f"{name} at {address}, process {pid}; end it with: penstock dev down {name}")


@dev_app.command()
def down(name: Name, json: Json = False) -> None:
    """End a server that ``penstock dev up`` has started."""
    folder = _folder(name)
    pid = _running(folder)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + WAIT_S
        while _running(folder) is not None:
            if time.monotonic() > deadline:
                raise SettingsError(f"dev: process {pid} did not end within {WAIT_S:.0f} s")
            time.sleep(POLL_S)
    if json:
        print_json({"server": str(name), "ended": pid})
    else:
        print(f"{name} does not run" if pid is None else f"{name} ended (process {pid})")


def _folder(name: Server) -> Path:
    from penstock.testing.kafka_broker import cache_folder

    return cache_folder() / "dev" / str(name)


def _running(folder: Path) -> int | None:
    """The server's process, if it is one: a number can belong to another by now."""
    with suppress(FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        pid = int((folder / "pid").read_text().split()[0])
        if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None
