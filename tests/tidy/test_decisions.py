"""Decisions belong to the machines of ``core/``: the table of them is true, clocks only measure."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.testing.mutants.catch import MUTANTS
from penstock.testing.simulator.cases import Case

NO_DECISIONS = {
    "core/control/messages.py",  # says which messages there are
}
"""Modules with a theory of operation that decide nothing."""

CLOCKS = {"monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "perf_counter_ns"}
READERS = {"now_us", "now_ms", "_now_ms", "work_clock_s"}

MAY_READ_A_CLOCK = {
    # They hand the time to a machine, which decides.
    "driver/controller.py": "for the machine of the flow's life; the pace of pings and of progress",
    "driver/members.py": "for the membership machine",
    "host/ring.py": "for the ring's machine; measures how busy the host is",
    # They measure, for people and for plans.
    "driver/meter.py": "measures rates and costs",
    "driver/pulse.py": "whether the controller has spoken lately",
    "driver/recovery_history.py": "notes when things happened",
    "driver/recovery_story.py": "notes when things happened",
    "driver/replicas.py": "notes when things happened; numbers a run whose record is damaged",
    "driver/stalls.py": "says how long writers have waited",
    "host/causal_agent.py": "measures how long a restart takes",
    "host/node.py": "measures latency",
    # They wait for a person, who gives the timeout.
    "driver/query.py": "waits for the flow",
    "driver/rollbacks.py": "waits for checkpoints and rollbacks that were asked for",
    # They choose moments, and no protocol depends on which; docs/testing.md names them.
    "driver/frame_runner.py": "when a DataFrame job runs",
    "driver/live_plan.py": "when the flow is planned again and the store's speed is measured",
    "host/causal_node.py": "when a checkpoint is due that was not asked for; measures costs",
    "host/host.py": "the pace of retries, pauses and drills; measures what nodes take",
    "host/replicas/agent.py": "the pace at which replicas tell what can be told together",
    "host/task.py": "the lease",
    "host/incoming.py": "how long a caller may take to say who it is",
    "host/outgoing.py": "when to connect again; when to acknowledge what has come",
    "host/poller.py": "how long to wait",
    "host/transport.py": "how long to drain",
    # They are clocks.
    "host/clock.py": "the wall clock and the epoch clock",
    "host/chain_stage.py": "a user's ctx.now(), noted with its step",
    "host/outside.py": "a user's ctx.now(), noted with its step",
}
"""Modules of ``engine/`` that read a clock, and what for."""


class Row(NamedTuple):
    """One line of the table of decisions."""

    decision: str
    machines: list[str]
    covered_by: list[str]
    mutants: list[str]


def rows_of(page: str) -> list[Row]:
    """The table of decisions."""
    _, _, rest = page.partition("\n### Decisions\n")
    found = []
    for line in rest.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] not in ("decision", "---"):
            found.append(Row(cells[0], *(re.findall(r"`([^`]+)`", cell) for cell in cells[1:])))
    return found


@pytest.fixture(scope="module")
def rows(root: Path) -> list[Row]:
    return rows_of((root / "docs" / "testing.md").read_text(encoding="utf-8"))


def is_run(name: str) -> bool:
    """Whether the simulator has such runs."""
    return str(Case.parse(f"{name}:0")) == f"{name}:0"


def test_every_decision_has_a_machine_and_something_that_covers_it(
    root: Path, source: Path, rows: list[Row]
) -> None:
    assert len(rows) > 30
    for row in rows:
        assert row.machines, row.decision
        for machine in row.machines:
            assert machine.startswith("core/"), machine
            assert (source / "penstock" / machine).is_file(), f"{row.decision}: no {machine}"
        assert row.covered_by, row.decision
        for name in row.covered_by:
            exists = (root / name).is_file() if name.startswith("tests/") else is_run(name)
            assert exists, f"{row.decision}: no {name}"


def test_every_mutant_attacks_a_decision_of_the_table(rows: list[Row]) -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    modules = {mutant.name: modules_of(list(mutant.changes)) for mutant in MUTANTS}
    for row in rows:
        for name in row.mutants:
            assert name in modules, f"{row.decision}: there is no mutant {name}"
            changed = modules[name] & set(row.machines)
            assert changed, f"{row.decision}: {name} changes {modules[name]}"
    named = {name for row in rows for name in row.mutants}
    assert sorted(modules.keys() - named) == []


def modules_of(targets: list[str]) -> set[str]:
    """The modules of a mutant's targets, as paths."""
    names = (target.partition(":")[0].removeprefix("penstock.") for target in targets)
    return {name.replace(".", "/") + ".py" for name in names}


def test_every_machine_of_the_driver_and_of_nodes_is_in_the_table(
    source: Path, rows: list[Row]
) -> None:
    package = source / "penstock"
    machines = {
        path.relative_to(package).as_posix()
        for folder in ("control", "node")
        for path in (package / "core" / folder).glob("*.py")
        if "Theory of operation" in path.read_text(encoding="utf-8")
    }
    named = {machine for row in rows for machine in row.machines}
    assert sorted(machines - named - NO_DECISIONS) == []


# -- clocks --------------------------------------------------------------------------------------


def clocks_read(path: Path) -> Iterator[str]:
    """Where a module reads a clock, or takes a function that does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        name = None
        if isinstance(node, ast.Attribute):
            of_time = isinstance(node.value, ast.Name) and node.value.id == "time"
            name = node.attr if of_time and node.attr in CLOCKS else None
            name = name or (node.attr if node.attr in READERS else None)
        elif isinstance(node, ast.Name) and node.id in READERS:
            name = node.id
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            name = "from time import"
        if name is not None:
            yield f"{path.name}:{node.lineno} reads {name}"


def test_only_listed_modules_of_hosts_and_driver_read_a_clock(source: Path) -> None:
    engine = source / "penstock" / "engine"
    paths = [path for part in ("driver", "host") for path in sorted((engine / part).rglob("*.py"))]
    reading = {path.relative_to(engine).as_posix(): list(clocks_read(path)) for path in paths}
    found = {name: lines for name, lines in reading.items() if lines}
    assert {n: lines for n, lines in found.items() if n not in MAY_READ_A_CLOCK} == {}
    assert sorted(MAY_READ_A_CLOCK.keys() - found.keys()) == [], "these read no clock any more"


def test_clocks_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("import time\nx = time.monotonic()\ny = now_us()\nz = time.sleep(1)\n")
    assert list(clocks_read(path)) == ["a.py:2 reads monotonic", "a.py:3 reads now_us"]


# -- the walks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("walk", ["A row's way", "A failure's way"])
def test_a_walk_has_at_most_twelve_files(root: Path, source: Path, walk: str) -> None:
    page = (root / "docs" / "design.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {walk}\n")[2].partition("\n## ")[0]
    files = re.findall(r"`([\w/]+\.py)`", section)
    steps = re.findall(r"^\d+\. `[\w/]+\.py`", section, re.MULTILINE)
    assert 5 <= len(set(files)) == len(steps) <= 12
    assert [name for name in files if not (source / "penstock" / name).is_file()] == []
