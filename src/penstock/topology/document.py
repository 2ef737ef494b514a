"""A topology file as read: what it says, where it says it, and what is wrong with it so far."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from penstock.errors import PenstockError, TopologyError
from penstock.topology.positions import Path, TextPosition, TextPositions, places

__all__ = ["Document", "Problem", "read_document"]

_AT = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


class Problem(NamedTuple):
    """Something that is wrong, and where."""

    place: TextPosition
    message: str


@dataclass
class Document:
    """A parsed file; problems are gathered, so that one look shows all of them."""

    file: FilePath
    data: Mapping[str, Any]
    places: TextPositions
    problems: list[Problem] = field(default_factory=list)

    def problem(self, path: Path, message: str, value: bool = False) -> None:
        """Note a problem at a key, or at its value."""
        self.problems.append(Problem(self.places.of(path, value), message))

    def refuse(self) -> None:
        """Raise an error with all problems, if there are any."""
        if self.problems:
            raise error_of(self.file, sorted(self.problems))

    @contextmanager
    def at(self, path: Path, what: str) -> Iterator[None]:
        """Errors in the block are told as problems of the value there."""
        try:
            yield
        except TopologyError:
            raise
        except PenstockError as error:
            self.problem(path, f"{what}: {error.message}", value=True)
            self.refuse()


def error_of(file: FilePath, problems: list[Problem]) -> TopologyError:
    """One error for several problems; the parameters have them apart."""
    lines = [f"{file}:{line}:{column}: {text}" for (line, column), text in problems]
    return TopologyError(
        "\n".join(lines),
        file=str(file),
        line=problems[0].place.line,
        column=problems[0].place.column,
        problems=[
            {"line": line, "column": column, "message": text} for (line, column), text in problems
        ],
    )


def read_document(path: str | FilePath) -> Document:
    """Read a file; one that is not TOML is refused where it goes wrong."""
    file = FilePath(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise TopologyError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TopologyError(f"{file} is not UTF-8 text: {error}") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise error_of(file, [_where(str(error), text)]) from error
    return Document(file, data, places(text))


def _where(message: str, text: str) -> Problem:
    found = _AT.search(message)
    said = _AT.sub("", message)
    if found is None or found.group(1) is None:
        lines = text.split("\n")
        return Problem(
            TextPosition(len(lines), len(lines[-1]) + 1), f"not TOML: {said}, at the end"
        )
    return Problem(TextPosition(int(found.group(1)), int(found.group(2))), f"not TOML: {said}")
