"""``penstock drill``: crash, freeze and slow down parts of a flow that is running.

A drill is commands, one a line: given as arguments, read from a script, or typed at a prompt.  The
flow's driver does what they say (:mod:`penstock.engine.driver.drills`) through its control channel.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from penstock.cli.output import print_json
from penstock.durations import duration_us
from penstock.engine.driver.command_channel import DriverAddress, call, find_driver
from penstock.errors import PenstockError, SettingsError, TransientError
from penstock.expressions.suggest import nearest
from penstock.terminal import stderr

__all__ = ["DrillSession", "drill"]

WAIT_S = 60.0
POLL_S = 0.05
PROMPT = "drill> "


def drill(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE|PID", help="The flow's checkpointLocation, or its driver's process id."
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="One command; without any they are typed."),
    ] = None,
    script: Annotated[
        Path | None, typer.Option(help="A file of commands, one a line; # begins a comment.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Crash, freeze and slow down parts of a running flow.

    Commands: status, nodes, crash, freeze, unfreeze, slow, sever, wait, recoveries, stop, help.
    A node is given by its name, such as counts[0]; a stage's name means all its nodes, host:2 those
    of a host.
    """
    if command and script:
        raise SettingsError("drill: give a command or a script, not both")
    session = DrillSession(find_driver(target), quiet=json)
    if script is not None:
        try:
            lines = script.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise SettingsError(f"drill: cannot read {script}: {error.strerror}") from error
        session.script(lines, str(script))
    elif command:
        session.run(shlex.join(command))
    else:
        session.typed(sys.stdin)
    if json:
        print_json({"pid": session.driver.pid, "commands": session.done})


@dataclass
class DrillSession:
    """Commands for one flow, and what came of them."""

    driver: DriverAddress
    quiet: bool = False
    done: list[dict[str, Any]] = field(default_factory=list)
    _before: int | None = None
    """How many recoveries there were before the last crash."""

    def script(self, lines: Iterable[str], name: str) -> None:
        """Run lines; the first that fails ends it, and the error says which."""
        for number, line in enumerate(lines, 1):
            try:
                self.run(line)
            except PenstockError as error:
                where = f"{name}:{number}: {error.message}"
                raise type(error)(where, **error.parameters) from error

    def typed(self, lines: Iterable[str]) -> None:
        """Run lines as they are typed; an error is told, and the next line is read."""
        person = sys.stdin.isatty() and not self.quiet
        if person:
            stderr.print('Commands for a running flow; "help" lists them, "quit" ends.')
            stderr.print(PROMPT, end="")
        for line in lines:
            if line.strip() in ("quit", "exit"):
                return
            try:
                self.run(line)
            except PenstockError as error:
                if not person:
                    raise
                stderr.print(error.message, style="red", markup=False, highlight=False)
            if person:
                stderr.print(PROMPT, end="")

    def run(self, line: str) -> Any:
        """Run one command."""
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise SettingsError(f"{line!r}: {error}") from error
        if not words:
            return None
        name, *arguments = words
        known = _COMMANDS.get(name)
        if known is None:
            raise SettingsError(
                f"there is no command {name!r}{nearest(name, _COMMANDS)} there are "
                f"{', '.join(_COMMANDS)}"
            )
        least, most = known.words
        if not least <= len(arguments) <= most:
            raise SettingsError(f"write it as: {name} {known.usage}".rstrip())
        result = known.function(self, arguments)
        self.done.append({"command": shlex.join(words), "result": result})
        if not self.quiet:
            known.show(result)
        return result

    def ask(self, name: str, **arguments: Any) -> Any:
        """What the driver answers."""
        return call(self.driver, name, **arguments)

    # -- the commands ----------------------------------------------------------------------------

    def status(self, _words: list[str]) -> Any:
        return self.ask("status")

    def nodes(self, _words: list[str]) -> Any:
        return self.ask("nodes")

    def recoveries(self, _words: list[str]) -> Any:
        return self.ask("recoveries")

    def crash(self, words: list[str]) -> Any:
        if words == ["driver"]:
            try:
                os.kill(self.driver.pid, signal.SIGKILL)
            except OSError as error:
                raise SettingsError(f"process {self.driver.pid}: {error.strerror}") from error
            return [{"host": 0, "pid": self.driver.pid}]
        self._before = len(self.ask("recoveries"))
        return self.ask("crash", target=_target(words[0]))

    def freeze(self, words: list[str]) -> Any:
        seconds = _seconds(words[1:]) if words[1:] else None
        return self.ask("freeze", target=_target(words[0]), seconds=seconds)

    def unfreeze(self, words: list[str]) -> Any:
        return self.ask("unfreeze", target=_target(words[0]) if words else None)

    def slow(self, words: list[str]) -> Any:
        delay = " ".join(words[1:])
        return self.ask("slow", target=_target(words[0]), delay=0 if delay == "off" else delay)

    def sever(self, words: list[str]) -> Any:
        nodes = self.ask("nodes")
        hosts = {
            n["host"] for n in nodes if words[0] in (n["name"], n["stage"], f"host:{n['host']}")
        }
        if not hosts - {0}:
            raise SettingsError(f"sever: no node, stage or host {words[0]!r} runs in a host")
        for host in sorted(hosts - {0}):
            self.ask("sever", host=host)
        return [{"host": host} for host in sorted(hosts - {0})]

    def wait(self, words: list[str]) -> Any:
        if words[0] != "recovered":
            seconds = _seconds(words)
            time.sleep(seconds)
            return {"seconds": seconds}
        limit = _seconds(words[1:]) if words[1:] else WAIT_S
        deadline = time.monotonic() + limit
        while True:
            known = self.ask("recoveries")
            enough = self._before is None or len(known) > self._before
            if enough and all(entry["recovered_us"] is not None for entry in known):
                return known[-1] if known else None
            if time.monotonic() > deadline:
                raise TransientError(f"the flow has not recovered within {limit:g} s")
            time.sleep(POLL_S)

    def stop(self, _words: list[str]) -> Any:
        return self.ask("stop")

    def help(self, _words: list[str]) -> Any:
        return {f"{name} {one.usage}".strip(): one.about for name, one in _COMMANDS.items()}


@dataclass(frozen=True)
class _Command:
    usage: str
    words: tuple[int, int]
    about: str
    function: Callable[[DrillSession, list[str]], Any]
    show: Callable[[Any], None]


def _say(text: str) -> None:
    print(text, flush=True)


def _show_hosts(result: Any) -> None:
    for one in result:
        nodes = f", {', '.join(one['nodes'])}" if "nodes" in one else ""
        _say(f"host {one['host']}" + (f" (process {one['pid']}{nodes})" if "pid" in one else ""))


def _show_status(result: Any) -> None:
    progress = result["progress"] or {}
    _say(f"{result['name']}: {result['message']}, epoch {progress.get('batchId')}")
    for one in result["hosts"]:
        frozen = any(other["host"] == one["host"] for other in result["frozen"])
        state = " frozen" if frozen else ""
        _say(f"host {one['host']} (process {one['pid']}){state}: {', '.join(one['nodes'])}")
    for name, delay_ms in result["slow"].items():
        _say(f"{name} waits {delay_ms:g} ms after each batch")


def _show_nodes(result: Any) -> None:
    table = Table()
    for heading in ("node", "host", "process", "incarnation"):
        table.add_column(heading)
    for one in result:
        table.add_row(
            one["name"].replace("[", "\\["), *(str(one[k]) for k in ("host", "pid", "incarnation"))
        )
    stderr.print(table)


def _show_recoveries(result: Any) -> None:
    from penstock.cli.live import recovery_line

    for entry in result:
        _say(recovery_line(entry))


def _show_waited(result: Any) -> None:
    if result and "lost" in result:
        _show_recoveries([result])


def _show_slow(result: Any) -> None:
    for one in result:
        _say(f"{one['name']} waits {one['delay_ms']:g} ms after each batch")


def _show_help(result: Any) -> None:
    width = max(map(len, result))
    for usage, about in result.items():
        _say(f"{usage:{width}}  {about}")


def _show_nothing(_result: Any) -> None:
    pass


_COMMANDS: dict[str, _Command] = {
    "status": _Command("", (0, 0), "what the flow is doing", DrillSession.status, _show_status),
    "nodes": _Command("", (0, 0), "the nodes and where they run", DrillSession.nodes, _show_nodes),
    "crash": _Command(
        "NODE|STAGE|host:N|driver", (1, 1), "kill -9 the process", DrillSession.crash, _show_hosts
    ),
    "freeze": _Command(
        "NODE|STAGE|host:N [SECONDS]", (1, 3), "stop the process", DrillSession.freeze, _show_hosts
    ),
    "unfreeze": _Command(
        "[NODE|STAGE|host:N]", (0, 1), "let it, or all, go on", DrillSession.unfreeze, _show_hosts
    ),
    "slow": _Command(
        "NODE|STAGE|host:N DELAY|off",
        (2, 3),
        "wait after each batch",
        DrillSession.slow,
        _show_slow,
    ),
    "sever": _Command(
        "NODE|STAGE|host:N", (1, 1), "break connections", DrillSession.sever, _show_hosts
    ),
    "wait": _Command(
        "SECONDS|recovered [SECONDS]",
        (1, 3),
        "do nothing for a while",
        DrillSession.wait,
        _show_waited,
    ),
    "recoveries": _Command(
        "", (0, 0), "who was lost so far", DrillSession.recoveries, _show_recoveries
    ),
    "stop": _Command(
        "", (0, 0), "end the flow in an orderly way", DrillSession.stop, _show_nothing
    ),
    "help": _Command("", (0, 0), "this list", DrillSession.help, _show_help),
}


def _target(word: str) -> int | str:
    return int(word) if word.isdigit() else word


def _seconds(words: list[str]) -> float:
    """Seconds, or a duration such as ``500 ms``."""
    text = " ".join(words)
    try:
        seconds = float(text)
    except ValueError:
        seconds = duration_us(text, "seconds") / 1_000_000
    if not 0 <= seconds <= 86_400:
        raise SettingsError(f"seconds are a number from 0 to a day, got {text}")
    return seconds
