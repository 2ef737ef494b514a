"""Rules about files: size, package indexes, lock files, the changelog."""

import ast
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

LINES_MAX = 600
# Written so that no pattern matches its own text.
INDEX = re.compile(
    r"index[-_]url|find[-_]links|trusted[-_]host|python[h]osted\.org|pypi\.org/[s]imple"
    r"|test\.[p]ypi\.org|[a]rtifactory|/[n]exus/|registry\.[n]pmjs|repo1?\.[m]aven",
    re.IGNORECASE,
)
LOCK_NAMES = {"package-lock.json", "pnpm-lock.yaml", "npm-shrinkwrap.json"}
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+( *;.*)?")


def too_long(paths: Iterable[Path]) -> list[str]:
    """The Python modules with more lines than anybody wants to scroll through."""
    return [
        f"{path} has {count} lines, more than {LINES_MAX}"
        for path in paths
        if path.suffix == ".py"
        and (count := len(path.read_text(encoding="utf-8").splitlines())) > LINES_MAX
    ]


def named_indexes(paths: Iterable[Path]) -> list[str]:
    """Where a package index or registry is named: everyone has their own."""
    problems = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        problems += [f"{path} names {match.group()}" for match in INDEX.finditer(text)]
    return problems


def lock_files(paths: Iterable[Path]) -> list[str]:
    """Lock files: they carry addresses, and constraints.txt has the versions."""
    return [str(path) for path in paths if path.suffix == ".lock" or path.name in LOCK_NAMES]


def bad_pins(text: str) -> list[str]:
    """The lines of a constraints file that are not ``name==version``."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and line[0] != "#" and not PIN.fullmatch(line)]


def changelog_problems(changelog: str, version: str) -> list[str]:
    """The headings that the changelog lacks."""
    headings = re.findall(r"^## \[([^\]]+)\]", changelog, re.MULTILINE)
    return [f"no entry for {name}" for name in ("Unreleased", version) if name not in headings]


def test_no_module_is_too_long(tracked: list[Path]) -> None:
    assert too_long(tracked) == []


def test_a_long_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * (LINES_MAX + 1))
    (tmp_path / "short.py").write_text("x = 1\n" * LINES_MAX)
    (tmp_path / "long.csv").write_text("1\n" * (LINES_MAX + 1))
    [problem] = too_long(sorted(tmp_path.iterdir()))
    assert "long.py has 601 lines" in problem


def test_no_file_names_a_package_index(tracked: list[Path]) -> None:
    assert named_indexes(tracked) == []


def test_a_named_index_is_found(tmp_path: Path) -> None:
    bad = tmp_path / "constraints.txt"
    bad.write_text("--extra-index-" + "url https://a.example/" + "simple\nnumpy==2.0\n")
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\xff\xfe")
    assert len(named_indexes([bad, picture])) == 1


def test_no_lock_file_is_tracked(tracked: list[Path]) -> None:
    assert lock_files(tracked) == []


def test_a_lock_file_is_found() -> None:
    names = [Path("uv.lock"), Path("a/poetry.lock"), Path("package-lock.json"), Path("lock.py")]
    assert lock_files(names) == ["uv.lock", "a/poetry.lock", "package-lock.json"]


def test_constraints_are_pins_and_nothing_else(root: Path) -> None:
    assert bad_pins((root / "constraints.txt").read_text(encoding="utf-8")) == []


def test_a_line_that_is_no_pin_is_found() -> None:
    text = "# comment\nnumpy==2.0\nrich>=3\na @ file:///tmp/a\nb==1 --hash=x\n"
    assert bad_pins(text) == ["rich>=3", "a @ file:///tmp/a", "b==1 --hash=x"]


def test_every_direct_dependency_is_pinned(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted += extra
    pinned = re.findall(r"^([\w.-]+)==", (root / "constraints.txt").read_text(), re.MULTILINE)
    known = {name.lower() for name in pinned}
    assert [need for need in wanted if re.split(r"[^\w.-]", need)[0].lower() not in known] == []


def test_the_changelog_has_the_version(root: Path) -> None:
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    assert changelog_problems((root / "CHANGELOG.md").read_text(encoding="utf-8"), version) == []


def test_a_changelog_without_the_version_is_found() -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0]\n"
    assert changelog_problems(text, "0.1.0") == []
    assert changelog_problems(text, "0.2.0") == ["no entry for 0.2.0"]
    assert changelog_problems("## [0.1.0]\n", "0.1.0") == ["no entry for Unreleased"]


def test_no_constructor_has_more_than_eight_parameters(source: Path) -> None:
    found = [
        f"{path}:{function.lineno} has {len(arguments)} parameters"
        for path in sorted(source.rglob("*.py"))
        for made in ast.walk(ast.parse(path.read_text()))
        if isinstance(made, ast.ClassDef)
        for function in made.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        if len(arguments := [*function.args.args, *function.args.kwonlyargs][1:]) > 8
    ]
    assert found == []
