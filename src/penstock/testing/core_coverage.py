"""Which statements of ``core/`` simulated runs reach.

Only modules that a running flow imports count, and of these only statements inside of functions:
the rest runs when a module is imported.  Modules that no simulated run can reach because the
simulators do not drive them are listed apart, each with the tests that prove it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import penstock
from penstock.testing.shards import in_shards

__all__ = ["PROVED_ELSEWHERE", "imported_core", "measure", "ranges", "statements"]

ROOT = Path(penstock.__file__).parent
PRODUCTION = ("api", "connectors", "engine", "expressions", "library", "operators", "planning")

PROVED_ELSEWHERE: dict[str, str] = {
    "penstock.core.plan": "tests/property/test_plan_laws.py",
    "penstock.core.graph": "tests/unit/core/test_graph.py",
    "penstock.core.time": "tests/unit/core/test_time.py",
    "penstock.core.order": "tests/unit/core/test_time.py",
    "penstock.core.antichain": "tests/unit/core/test_antichain.py",
    "penstock.core.causal.codec": "tests/property/test_causal_codec.py",
    "penstock.core.delivery.guarantees": "tests/unit/core/test_delivery_guarantees.py",
    "penstock.core.delivery.lane_epochs": "tests/property/test_delivery_laws.py",
    "penstock.core.kafka.reading": "tests/property/test_kafka_reading.py",
    "penstock.core.kafka.writing": "tests/property/test_kafka_writing.py",
    "penstock.core.progress.summary": "tests/property/test_progress_tracker.py",
    "penstock.core.progress.notifications": "tests/property/test_progress_tracker.py",
    "penstock.core.rollback.cascades": "tests/unit/core/test_rollback.py",
    "penstock.core.rollback.constraints": "tests/property/test_rollback_solver.py",
    "penstock.core.rollback.metadata": "tests/property/test_rollback_solver.py",
    "penstock.core.rollback.monitor": "tests/property/test_rollback_monitor.py",
    "penstock.core.rollback.regimes": "tests/property/test_rollback_solver.py",
    "penstock.core.rollback.spans": "tests/property/test_rollback_spans.py",
    "penstock.core.rollback.transformers": "tests/property/test_rollback_spans.py",
    "penstock.core.rollback.witnessed": "tests/property/test_rollback_solver.py",
}
"""Modules or packages that simulated runs do not drive, or only a part of, and the tests that do.

What a flow is planned with (graphs, plans, guarantees, cascades) runs before it does.  Of the
general theory of rollbacks a running flow has whole epochs only: no witnesses, no exact deliveries
and no transformers of loops.  Its codecs are put together when they are imported.  What a Kafka
broker does is no part of the simulated world.
"""

TRACED = 20
"""One of so many runs writes its trace, too."""

_Report = dict[str, Any]
Reached = frozenset[tuple[str, int]]
"""Module and line."""


def measure(seed: int, runs: int, processes: int) -> dict[str, Any]:
    """Run seeds from one on and say what they reach."""
    lines: set[tuple[str, int]] = set()
    for found in in_shards(reached_by, seed, runs, processes):
        lines |= found
    counted: dict[str, _Report] = {}
    apart: dict[str, _Report] = {}
    for module in imported_core():
        tests = proved_elsewhere(module)
        (counted if tests is None else apart)[module] = _file_report(module, lines)
    total = sum(report["statements"] for report in counted.values())
    missed = sum(report["missed"] for report in counted.values())
    elsewhere = sum(report["statements"] for report in apart.values())
    reached = total - missed + elsewhere - sum(report["missed"] for report in apart.values())
    return {
        "runs": runs,
        "share": round(1 - missed / total, 4),
        "share_of_all": round(reached / (total + elsewhere), 4),
        "statements": total,
        "missed": missed,
        "never_reached": {m: ranges(r["lines"]) for m, r in counted.items() if r["missed"]},
        "proved_elsewhere": {
            module: {"tests": proved_elsewhere(module), "statements": report["statements"]}
            for module, report in apart.items()
        },
    }


def ranges(lines: Iterable[int]) -> str:
    """Lines in short.

    >>> ranges([3, 5, 6, 7])
    '3, 5-7'
    """
    found: list[list[int]] = []
    for line in lines:
        if found and line == found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)


def reached_by(seeds: range) -> Reached:
    """The lines of ``core/`` that these seeds reach."""
    from penstock.testing.simulator.run import run_seed

    tracer = _Tracer()
    before = sys.gettrace()
    sys.settrace(tracer.called)
    try:
        for seed in seeds:
            run_seed(seed, trace=seed % TRACED == 0)
    finally:
        sys.settrace(before)
    return frozenset(tracer.lines)


class _Tracer:
    """Notes which statements of ``core/`` run; code that has nothing new to show runs untraced."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self._by_code: dict[CodeType, _Code | None] = {}

    def called(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        try:
            found = self._by_code[code]
        except KeyError:
            found = self._by_code[code] = self._of(code)
        return found.line if found is not None and found.waiting else None

    def _of(self, code: CodeType) -> _Code | None:
        path = Path(code.co_filename)
        if not path.is_relative_to(ROOT / "core"):
            return None
        return _Code(_module(path), code, self.lines)


class _Code:
    """The lines of one piece of code that no run has reached so far."""

    def __init__(self, module: str, code: CodeType, lines: set[tuple[str, int]]) -> None:
        self._module = module
        self._lines = lines
        known = statements(module)
        self.waiting = {line for _, _, line in code.co_lines() if line in known}

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_lineno in self.waiting:
            self.waiting.discard(frame.f_lineno)
            self._lines.add((self._module, frame.f_lineno))
        return self.line if self.waiting else None


def _file_report(module: str, reached: set[tuple[str, int]]) -> _Report:
    found = statements(module)
    hit = {found[line] for one, line in reached if one == module and line in found}
    missed = sorted(set(found.values()) - hit)
    return {"statements": len(set(found.values())), "missed": len(missed), "lines": missed}


@cache
def statements(module: str) -> dict[int, int]:
    """Per line of a function's body: the first line of the innermost statement that has it."""
    found: dict[int, int] = {}

    def visit(body: Iterable[ast.stmt], inside: bool) -> None:
        for statement in body:
            if inside and not _is_silent(statement):
                end = statement.end_lineno or statement.lineno
                for line in range(statement.lineno, end + 1):
                    found[line] = statement.lineno
            is_function = isinstance(statement, ast.FunctionDef)
            for _, value in ast.iter_fields(statement):
                for part in value if isinstance(value, list) else ():
                    if isinstance(part, ast.stmt):
                        visit([part], inside or is_function)
                    elif isinstance(part, ast.ExceptHandler | ast.match_case):
                        visit(part.body, inside)

    visit(ast.parse(_path(module).read_text()).body, False)
    return found


def _is_silent(statement: ast.stmt) -> bool:
    """Whether a statement leaves no trace: a docstring, or the head of a nested function."""
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass | ast.Nonlocal)


def proved_elsewhere(module: str) -> str | None:
    """The tests of a module that simulated runs do not drive."""
    for name, tests in PROVED_ELSEWHERE.items():
        if module == name or module.startswith(f"{name}."):
            return tests
    return None


@cache
def imported_core() -> tuple[str, ...]:
    """The modules of ``core/`` that a running flow imports, directly or through another one."""
    waiting = [
        name
        for package in PRODUCTION
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in _imports(path)
    ]
    found: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module not in found and _path(module).exists():
            found.add(module)
            waiting += _imports(_path(module))
    return tuple(sorted(found))


def _imports(path: Path) -> Iterator[str]:
    """The names of ``core/`` that a file imports: modules, and what may be one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock.core"):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _path(module: str) -> Path:
    path = ROOT.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
