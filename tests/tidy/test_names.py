"""One word, one meaning: a public class name is defined once, and a class in one file."""

import ast
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

SHARED_NAMES = {
    "Host": "engine/host/host.py, and what stands for it in the simulator",
    "Vertex": "api/vertex.py, and what stands for a user's stage in the simulator",
}
"""Names of several public classes, and why they may share it."""


def classes_in(tree: Path) -> dict[str, list[str]]:
    """By name, the modules that define a public class."""
    found = defaultdict(list)
    for path in sorted(tree.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(tree).as_posix())
    return found


def names_defined_twice(tree: Path) -> dict[str, list[str]]:
    """Names of public classes that several modules define."""
    return {name: where for name, where in classes_in(tree).items() if len(where) > 1}


def halves(tree: Path) -> list[str]:
    """Classes that exist to be the one base of a class in another module.

    Nothing else mentions such a class, so it is no type of its own: it is the first half of the
    other one, cut off to make a file shorter.  A part that the other one holds says what it needs.
    """
    defined: dict[str, str] = {}
    bases: dict[str, list[str]] = defaultdict(list)
    mentions: Counter[str] = Counter()
    for path in sorted(tree.rglob("*.py")):
        module = path.relative_to(tree).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            mentions.update(_mentioned(node))
            if isinstance(node, ast.ClassDef):
                defined[node.name] = module
                for base in node.bases:
                    bases[_bare(base)].append(f"{node.name} in {module}")
    return [
        f"{name} in {defined[name]} is half of {one[0]}"
        for name, one in sorted(bases.items())
        if name in defined and len(one) == mentions[name] == 1
        if not one[0].endswith(f" in {defined[name]}")
    ]


def _mentioned(node: ast.AST) -> list[str]:
    """The name that a node of the syntax tree mentions, if it is a use of one."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    return []


def _bare(base: ast.expr) -> str:
    """The name of a base class, without its module or its parameters."""
    if isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def _write(tree: Path, modules: Mapping[str, str]) -> None:
    for name, text in modules.items():
        (tree / name).write_text(text)


def test_every_public_class_has_a_name_of_its_own(source: Path) -> None:
    found = names_defined_twice(source / "penstock")
    assert {name: where for name, where in found.items() if name not in SHARED_NAMES} == {}
    assert sorted(SHARED_NAMES.keys() - found.keys()) == [], "these are defined once now"


def test_a_name_of_two_classes_is_found(tmp_path: Path) -> None:
    _write(tmp_path, {"a.py": "class Plan:\n    pass\n\n\nclass _Mine:\n    pass\n"})
    _write(tmp_path, {"b.py": "class Plan:\n    pass\n\n\nclass _Mine:\n    pass\n"})
    assert names_defined_twice(tmp_path) == {"Plan": ["a.py", "b.py"]}


def test_no_class_is_cut_over_files_by_inheritance(source: Path) -> None:
    assert halves(source / "penstock") == []


def test_a_class_cut_in_two_is_found(tmp_path: Path) -> None:
    first = "class First:\n    pass\n\n\nclass Used:\n    pass\n\n\nmade = Used()\n"
    _write(tmp_path, {"first.py": first})
    _write(tmp_path, {"whole.py": "class Whole(First):\n    pass\n\n\nclass Other(Used): ...\n"})
    assert halves(tmp_path) == ["First in first.py is half of Whole in whole.py"]
