"""Processes of a flow exchange typed messages: no dicts, and no method called by a word."""

import ast
from collections.abc import Iterator
from pathlib import Path

SENT = {
    "control",
    "control_all",
    "tell",
    "_tell",
    "_tell_all",
    "_to_host",
    "_to_agent",
    "_tell_agents",
}


def untyped_messages(tree: Path) -> list[str]:
    """Calls that send a dict, and methods that are called by a word."""
    problems = []
    for path in sorted(tree.rglob("*.py")):
        syntax = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for node in ast.walk(syntax):
            if not isinstance(node, ast.Call):
                continue
            where = f"{path.relative_to(tree)}:{node.lineno}"
            if _name(node.func) in SENT and any(map(_is_dict, _arguments(node))):
                problems.append(f"{where} sends a dict")
            if isinstance(node.func, ast.Call) and _name(node.func.func) == "getattr":
                problems.append(f"{where} calls what a word names")
    return problems


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _arguments(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args
    yield from (keyword.value for keyword in call.keywords)


def _is_dict(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Dict | ast.DictComp)


def kinds_in_dicts(tree: Path) -> list[str]:
    """Dict literals with a kind in modules that talk to other processes."""
    problems = []
    for path in sorted(tree.rglob("*.py")):
        syntax = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for node in ast.walk(syntax):
            keys = node.keys if isinstance(node, ast.Dict) else []
            if any(isinstance(key, ast.Constant) and key.value == "kind" for key in keys):
                problems.append(f"{path.relative_to(tree)}:{node.lineno} has a dict with a kind")
    return problems


def test_processes_exchange_typed_messages(source: Path) -> None:
    assert untyped_messages(source / "penstock" / "engine") == []
    assert kinds_in_dicts(source / "penstock" / "engine" / "host") == []


def test_an_untyped_message_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('transport.control(3, {"kind": "go"})\n')
    (tmp_path / "b.py").write_text('getattr(self, f"_order_{what}")(1)\ngetattr(self, name, 1)\n')
    (tmp_path / "c.py").write_text('body = {"kind": "go"}\nself._tell(HostReady())\n')
    assert untyped_messages(tmp_path) == ["a.py:1 sends a dict", "b.py:1 calls what a word names"]
    assert kinds_in_dicts(tmp_path) == [
        "a.py:1 has a dict with a kind",
        "c.py:1 has a dict with a kind",
    ]
