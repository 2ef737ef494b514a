"""The repository as the rules see it."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def source(root: Path) -> Path:
    """The folder that holds the package."""
    return root / "src"


@pytest.fixture(scope="session")
def tracked(root: Path) -> list[Path]:
    """The files under version control that exist; without git, all the files there are."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
        return [path for name in names if (path := root / name).is_file()]
    return [
        path
        for path in root.rglob("*")
        if path.is_file() and not {".venv", ".git", "__pycache__"} & set(path.parts)
    ]
