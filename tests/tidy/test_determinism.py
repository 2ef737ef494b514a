"""What would make a replay differ or let foreign bytes run: ``hash()`` and pickles."""

import ast
from collections.abc import Iterator
from pathlib import Path

PICKLES = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
NO_PICKLE = ("core", "wire", "operators", "connectors", "engine")
NO_HASH = ("core", "wire", "operators", "engine")
CODE_TRAVELS_HERE = "engine/spark"


def risky_calls(package: Path) -> list[str]:
    """Imports of pickling modules, and calls of the built-in ``hash``, where data flows."""
    problems = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        layer = name.split("/")[0]
        syntax = ast.parse(path.read_text(encoding="utf-8"), str(path))
        if layer in NO_PICKLE and not name.startswith(CODE_TRAVELS_HERE):
            problems += [f"{name}:{line} imports {what}" for line, what in _pickles(syntax)]
        if layer in NO_HASH:
            problems += [f"{name}:{line} calls hash()" for line in _hash_calls(syntax)]
    return problems


def _pickles(syntax: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(syntax):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from ((node.lineno, name) for name in names if name.split(".")[0] in PICKLES)


def _hash_calls(node: ast.AST) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and child.name == "__hash__":
            continue  # for dicts of this process; nothing is partitioned by it
        if (
            isinstance(child, ast.Call)
            and isinstance(child.func, ast.Name)
            and child.func.id == "hash"
        ):
            yield child.lineno
        yield from _hash_calls(child)


def test_data_is_neither_pickled_nor_hashed_by_python(source: Path) -> None:
    assert risky_calls(source / "penstock") == []


def test_pickles_and_hash_are_found(tmp_path: Path) -> None:
    for name, text in {
        "wire/a.py": "import pickle\n",
        "core/b.py": "def shard(key, n):\n    return hash(key) % n\n",
        "engine/c.py": "def f():\n    from pickle import loads\n",
        "engine/spark/d.py": "import cloudpickle\n",
        "core/e.py": "class K:\n    def __hash__(self):\n        return hash(1)\n",
        "cli/f.py": "import pickle\nhash(1)\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert risky_calls(tmp_path) == [
        "core/b.py:2 calls hash()",
        "engine/c.py:2 imports pickle",
        "wire/a.py:1 imports pickle",
    ]
