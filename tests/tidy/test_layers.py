"""Who may import whom: the core is pure, and Spark stays at its border."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CLOCKS_AND_CHANCE = {"time", "datetime", "random", "secrets", "uuid"}
CONCURRENCY = {"threading", "asyncio", "concurrent", "multiprocessing", "queue", "selectors"}
INPUT_OUTPUT = {
    "socket", "ssl", "select", "http", "urllib", "os", "io", "pathlib", "tempfile", "shutil",
    "subprocess", "signal", "glob", "mmap", "sqlite3",
}  # fmt: skip
FOREIGN = {"pyarrow", "pyspark", "py4j", "polars", "pandas", "msgpack", "sqlglot", "typer", "rich"}
NETWORK = {"socket", "ssl", "select", "selectors", "asyncio", "http", "urllib", "pyarrow.flight"}
SPARK = {"pyspark", "py4j"}
MAY_IMPORT_SPARK = (
    "penstock.engine.spark",
    "penstock.cli",
    "penstock.testing",
    "penstock.demos.adserving",  # its Spark job is what a user would write
    "penstock.errors",  # the one border where foreign errors are mapped
)


@dataclass(frozen=True)
class Import:
    """One imported name, and where: ``penstock.core.time`` imports ``abc.ABC``."""

    importer: str
    name: str
    line: int
    for_types_only: bool

    def within(self, *modules: str) -> bool:
        return is_within(self.name, *modules)


def is_within(name: str, *modules: str) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def imports_of(tree: Path) -> Iterator[Import]:
    """Every import in every module under ``tree``, also those inside functions."""
    for path in sorted(tree.rglob("*.py")):
        parts = path.relative_to(tree).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        syntax = ast.parse(path.read_text(encoding="utf-8"), str(path))
        yield from _imports(module, is_package, syntax, for_types_only=False)


def _imports(
    module: str, is_package: bool, node: ast.AST, for_types_only: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, for_types_only)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(module, is_package, child)
            for alias in child.names:
                yield Import(module, f"{base}.{alias.name}", child.lineno, for_types_only)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(module, is_package, child, for_types_only=True)
        else:
            yield from _imports(module, is_package, child, for_types_only)


def _absolute(module: str, is_package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    up = node.level - 1 if is_package else node.level
    base = parts[: len(parts) - up]
    return ".".join([*base, node.module] if node.module else base)


def broken_layers(tree: Path) -> list[str]:
    """The imports that break a layer, each with the reason."""
    problems = []
    for found in imports_of(tree):
        reason = _reason(found)
        if reason:
            problems.append(f"{found.importer}:{found.line} imports {found.name}: {reason}")
    return problems


def _reason(found: Import) -> str | None:
    if is_within(found.importer, "penstock.core"):
        if found.within(*CLOCKS_AND_CHANCE, *CONCURRENCY, *INPUT_OUTPUT, *FOREIGN):
            return "the core is pure"
        if found.within("penstock") and not found.within("penstock.core", "penstock.errors"):
            return "the core knows no other layer"
    if found.for_types_only:
        return None
    if is_within(found.importer, "penstock.wire"):
        if found.within(*NETWORK):
            return "the wire is bytes and batches, no sockets"
        if found.within("penstock.engine"):
            return "the wire does not know the engine"
    if is_within(found.importer, "penstock.operators") and found.within("penstock.engine"):
        return "operators do not know the engine"
    if is_within(found.importer, "penstock.operators") and found.within("penstock.connectors"):
        return "operators do not know connectors"
    if is_within(found.importer, "penstock.connectors") and found.within("penstock.engine"):
        return "connectors do not know the engine"
    if is_within(found.importer, "penstock.storage") and found.within("penstock.engine"):
        return "storage does not know the engine"
    if is_within(found.importer, "penstock.bench") and found.within("penstock.cli"):
        return "benchmarks do not know the commands that run them"
    if is_within(found.importer, "penstock.engine.host", "penstock.engine.driver") and found.within(
        "penstock.engine.spark"
    ):
        return "hosts and driver run without Spark, too"
    if is_within(found.importer, "penstock.engine.host") and found.within("penstock.engine.driver"):
        return "hosts do not know the driver's modules"
    if found.within(*SPARK) and not is_within(found.importer, *MAY_IMPORT_SPARK):
        return "Spark stays behind penstock.engine.spark"
    return None


def test_no_module_breaks_a_layer(source: Path) -> None:
    assert broken_layers(source) == []


def write(tree: Path, name: str, text: str) -> None:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_impure_core_is_found(tmp_path: Path) -> None:
    write(tmp_path, "penstock/core/a.py", "def f():\n    import time\n")
    write(tmp_path, "penstock/core/b.py", "from datetime import datetime\n")
    write(tmp_path, "penstock/core/c.py", "import os.path\n")
    write(tmp_path, "penstock/core/d.py", "from ..wire import header\n")
    write(tmp_path, "penstock/core/e/__init__.py", "from ...engine import loop\n")
    write(tmp_path, "penstock/core/f.py", "from penstock import flow\n")
    write(tmp_path, "penstock/core/g.py", "from pyarrow import compute\n")
    assert [problem.split(":")[0] for problem in broken_layers(tmp_path)] == [
        f"penstock.core.{name}" for name in "abcdefg"
    ]


def test_pure_core_is_accepted(tmp_path: Path) -> None:
    write(tmp_path, "penstock/core/a.py", "import numpy\nfrom penstock.errors import require\n")
    write(tmp_path, "penstock/core/b.py", "from .time import Time\nfrom . import time\n")
    write(tmp_path, "penstock/core/c/__init__.py", "from penstock.core.time import Time\n")
    write(tmp_path, "penstock/core/d.py", "from .. import errors\n")
    assert broken_layers(tmp_path) == []


def test_wire_with_sockets_is_found(tmp_path: Path) -> None:
    write(tmp_path, "penstock/wire/a.py", "import socket\n")
    write(tmp_path, "penstock/wire/b.py", "from pyarrow import flight\n")
    write(tmp_path, "penstock/wire/c.py", "import penstock.engine.loop\n")
    write(tmp_path, "penstock/wire/good.py", "import struct\nimport pyarrow\n")
    assert len(broken_layers(tmp_path)) == 3


def test_spark_outside_its_border_is_found(tmp_path: Path) -> None:
    write(tmp_path, "penstock/flow.py", "from pyspark.sql import SparkSession\n")
    write(tmp_path, "penstock/engine/loop.py", "import pyspark\n")
    write(tmp_path, "penstock/operators/map.py", "import penstock.engine\n")
    assert len(broken_layers(tmp_path)) == 3


def test_a_benchmark_that_imports_a_command_is_found(tmp_path: Path) -> None:
    write(tmp_path, "penstock/bench/a.py", "from penstock.cli.output import print_json\n")
    write(tmp_path, "penstock/cli/bench.py", "from penstock.bench.a import run\n")
    assert [problem.split(":")[0] for problem in broken_layers(tmp_path)] == ["penstock.bench.a"]


def test_a_host_or_driver_that_knows_spark_is_found(tmp_path: Path) -> None:
    write(tmp_path, "penstock/engine/host/a.py", "from pyspark import TaskContext\n")
    write(tmp_path, "penstock/engine/driver/b.py", "from penstock.engine.spark import launch\n")
    write(tmp_path, "penstock/engine/host/c.py", "from penstock.engine.driver import query\n")
    write(tmp_path, "penstock/engine/driver/d.py", "from penstock.engine.host import task\n")
    assert [problem.split(":")[0] for problem in broken_layers(tmp_path)] == [
        "penstock.engine.driver.b",
        "penstock.engine.host.a",
        "penstock.engine.host.c",
    ]


def test_spark_at_its_border_or_as_a_type_is_accepted(tmp_path: Path) -> None:
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyspark\n"
    write(tmp_path, "penstock/flow.py", types)
    write(tmp_path, "penstock/engine/spark/launch.py", "import pyspark\n")
    write(tmp_path, "penstock/errors.py", "import pyspark\n")
    assert broken_layers(tmp_path) == []


def test_a_flow_in_threads_imports_no_spark(source: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(source)!r})
import pyarrow as pa
from penstock import Flow
from penstock.testing.local import run_local
flow = Flow()
numbers = flow.memory(pa.schema({{"n": pa.int64()}}))
even = numbers.filter("n % 2 = 0").memory()
numbers.push([{{"n": 1}}, {{"n": 2}}])
run_local(flow)
assert even.toPylist() == [{{"n": 2}}]
assert not {{"pyspark", "py4j"}} & set(sys.modules), "Spark was imported"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
