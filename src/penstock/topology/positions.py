"""Where in a TOML text each key and value stands, for messages that point at them.

The standard library's parser says what a document means and forgets where it said so.  This walks
the same text, which that parser has accepted before, and only notes places: it decides nothing
about meaning, and need not refuse anything.

    >>> found = places('[stage.a]\\ninput = ["x", "y"]\\n')
    >>> found.keys["stage", "a", "input"], found.values["stage", "a", "input", 1]
    (TextPosition(line=2, column=1), TextPosition(line=2, column=15))
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Path", "TextPosition", "TextPositions", "places"]

Path = tuple[str | int, ...]
"""Keys, and numbers of elements of arrays, from the top."""

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""+'  # three quotes end it, and up to two more may belong to it
    r"|'''.*?'''+"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE = re.compile(r"[^,\]}\n#]*")


class TextPosition(NamedTuple):
    """A line and a column, both from 1."""

    line: int
    column: int


@dataclass
class TextPositions:
    """Where keys (and headings of tables) begin, and where values do."""

    keys: dict[Path, TextPosition] = field(default_factory=dict)
    values: dict[Path, TextPosition] = field(default_factory=dict)

    def of(self, path: Path, value: bool = False) -> TextPosition:
        """The place of a key, or of its value; of the nearest table around it if there is none."""
        if value and path in self.values:
            return self.values[path]
        while path and path not in self.keys and path not in self.values:
            path = path[:-1]
        return self.keys.get(path) or self.values.get(path) or TextPosition(1, 1)


def places(text: str) -> TextPositions:
    """The places of everything in a text that is valid TOML."""
    return _Walk(text.replace("\r\n", "\n")).document()


class _Walk:
    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._at = 0
        self._tables: dict[Path, int] = {}
        """How many tables each array of tables has so far."""
        self._found = TextPositions()

    def document(self) -> TextPositions:
        table: Path = ()
        while True:
            self._skip(_BLANK)
            if self._at >= len(self._text):
                return self._found
            if self._text[self._at] == "[":
                table = self._heading()
            else:
                self._pair(table)

    def _heading(self) -> Path:
        place = self._place()
        many = self._text.startswith("[[", self._at)
        self._at += 2 if many else 1
        parts = [name for name, _ in self._names()]
        self._at += 2 if many else 1
        path: Path = ()
        for number, part in enumerate(parts):
            path = (*path, part)
            last = number == len(parts) - 1
            self._found.keys.setdefault(path, place)
            if many and last:
                self._tables[path] = self._tables.get(path, 0) + 1
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
                self._found.keys.setdefault(path, place)
            elif last:  # the table's own heading says more than that of a table inside it
                self._found.keys[path] = place
        return path

    def _pair(self, table: Path) -> None:
        path = table
        for name, place in self._names():
            path = (*path, name)
            self._found.keys.setdefault(path, place)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _names(self) -> list[tuple[str, TextPosition]]:
        """A key with its dotted parts; ends at what follows it."""
        names = []
        while True:
            self._skip(_SPACE)
            place = self._place()
            raw = self._skip(_KEY)
            [name] = tomllib.loads(f"{raw} = 0")
            names.append((name, place))
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return names
            self._at += 1

    def _value(self, path: Path) -> None:
        self._found.values[path] = self._place()
        first = self._text[self._at]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._table(path)
        elif first in "\"'":
            self._text_value()
        else:
            self._skip(_BARE)

    def _array(self, path: Path) -> None:
        self._at += 1
        number = 0
        while True:
            self._skip(_BLANK)
            if self._text[self._at] == "]":
                self._at += 1
                return
            self._value((*path, number))
            number += 1
            self._skip(_BLANK)
            if self._text[self._at] == ",":
                self._at += 1

    def _table(self, path: Path) -> None:
        self._at += 1
        while True:
            self._skip(_BLANK)
            if self._text[self._at] == "}":
                self._at += 1
                return
            self._pair(path)
            self._skip(_BLANK)
            if self._text[self._at] == ",":
                self._at += 1

    def _text_value(self) -> None:
        found = _TEXT.match(self._text, self._at)
        if found is None:
            raise ValueError(f"not TOML at {self._place()}")
        self._at = found.end()

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"not TOML at {self._place()}")
        self._at = found.end()
        return found.group()

    def _place(self) -> TextPosition:
        line = bisect_right(self._lines, self._at)
        return TextPosition(line, self._at - self._lines[line - 1] + 1)
