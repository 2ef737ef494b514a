"""Text files by the line: a block is parsed at once, and only one that fails is taken apart.

``mode`` says what becomes of a malformed record, as in Spark:

- PERMISSIVE: it becomes a row with what can be read of it, nulls for the rest, and its text in the
  column ``_corrupt_record`` (``columnNameOfCorruptRecord``), if the schema has that column;
- DROPMALFORMED: it is left out, and counted;
- FAILFAST: the flow ends, with the file, the line and the reason.

Without a mode the file counts as corrupt from that line on; the rows before it are given.

Halving finds *k* bad lines among *n* with about *k* log *n* calls of the parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import SettingsError, SourceError

__all__ = ["MODES", "LineParser", "RecordMode", "whole_lines"]

MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_SHOWN_MAX = 200


@dataclass(frozen=True)
class RecordMode:
    """What becomes of malformed records."""

    mode: str | None = None
    column: str = "_corrupt_record"
    options = frozenset({"mode", "columnNameOfCorruptRecord"})

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RecordMode:
        """As the user's options say."""
        mode = options.get("mode")
        if mode is not None and str(mode).upper() not in MODES:
            raise SettingsError(f"files: mode must be one of {', '.join(MODES)}, got {mode!r}")
        column = options.get("columnNameOfCorruptRecord", cls.column)
        return cls(None if mode is None else str(mode).upper(), str(column))

    @property
    def keeps(self) -> bool:
        """Whether a malformed record becomes a row."""
        return self.mode == "PERMISSIVE"

    def inferred(self, schema: pa.Schema) -> pa.Schema:
        """An inferred schema, with a place for malformed records where they are kept."""
        if not self.keeps or self.column in schema.names:
            return schema
        return schema.append(pa.field(self.column, pa.string()))

    def without_column(self, schema: pa.Schema) -> pa.Schema:
        """The columns that are in the files."""
        if self.mode is None or self.column not in schema.names:
            return schema
        if schema.field(self.column).type != pa.string():
            raise SettingsError(
                f"files: the column of malformed records, {self.column!r}, must be a string, not "
                f"{schema.field(self.column).type}"
            )
        return schema.remove(schema.get_field_index(self.column))


@dataclass
class LineParser:
    """The rows of a file's blocks of lines."""

    path: str
    mode: RecordMode
    has_column: bool
    """Whether rows have the column for malformed records."""
    parse: Callable[[bytes], pa.RecordBatch]
    """The rows of some lines; an ``ArrowInvalid`` or ``ValueError`` if one is malformed."""
    partial: Callable[[bytes], pa.RecordBatch]
    """What can be read of a malformed line: one row."""
    refuse: Callable[[Exception, bytes], Exception]
    """What to raise for a malformed line where there is no mode."""
    count: Callable[[int], None]
    """Told how many records were malformed."""
    lines: int = 0
    """Lines before the present block."""

    def rows(self, blocks: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
        """The rows of a file, in its order."""
        for block in blocks:
            try:
                yield self._with_text(self.parse(block))
            except (pa.ArrowInvalid, ValueError) as error:
                yield from self._apart(block, error)
            self.lines += block.count(b"\n")

    def _apart(self, block: bytes, error: Exception) -> Iterator[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        bad: Exception | None = None
        malformed = 0
        lines = block.split(b"\n")
        for batch, line, failure in self._halved(lines, 0, error):
            if batch is not None:
                found.append(self._with_text(batch))
            elif failure is not None:
                malformed += 1
                text = lines[line].rstrip(b"\r")
                if self.mode.mode in (None, "FAILFAST"):
                    bad = self._refused(failure, text, self.lines + line + 1)
                    break
                if self.mode.keeps:
                    found.append(self._with_text(self.partial(text), text))
        self.count(malformed)
        if found:
            yield found[0] if len(found) == 1 else pa.concat_batches(found)
        if bad is not None:
            raise bad

    def _halved(
        self, lines: list[bytes], first: int, error: Exception
    ) -> Iterator[tuple[pa.RecordBatch | None, int, Exception | None]]:
        """Rows of good lines, and each malformed line with the reason, in order."""
        if len(lines) == 1:
            if lines[0].strip():
                yield None, first, error
            return
        middle = len(lines) // 2
        for start, half in ((first, lines[:middle]), (first + middle, lines[middle:])):
            text = b"\n".join(half)
            if not text.strip():
                continue
            try:
                yield self.parse(text), start, None
            except (pa.ArrowInvalid, ValueError) as failure:
                yield from self._halved(half, start, failure)

    def _refused(self, failure: Exception, text: bytes, number: int) -> Exception:
        reason = " ".join(str(failure).split())
        shown = text[:_SHOWN_MAX].decode("utf-8", "replace")
        if self.mode.mode is None:
            return self.refuse(pa.ArrowInvalid(f"line {number}: {reason}"), text)
        return SourceError(
            f"files: {self.path}, line {number} is malformed ({reason}): {shown!r}; mend the file, "
            "or start with mode='PERMISSIVE' or 'DROPMALFORMED'",
            path=self.path,
            line=number,
        )

    def _with_text(self, batch: pa.RecordBatch, text: bytes | None = None) -> pa.RecordBatch:
        if not self.has_column:
            return batch
        shown = None if text is None else text.decode("utf-8", "replace")
        column = pa.repeat(pa.scalar(shown, pa.string()), batch.num_rows)
        return batch.append_column(self.mode.column, column)


def whole_lines(stream: Any, size: int) -> Iterator[bytes]:
    """A stream's blocks of about ``size`` bytes, each to the end of a line."""
    rest: list[bytes] = []
    while data := stream.read(size):
        cut = data.rfind(b"\n") + 1
        if not cut:
            rest.append(data)
            continue
        yield b"".join((*rest, memoryview(data)[:cut]))
        rest = [data[cut:]] if cut < len(data) else []
    if rest:
        yield b"".join(rest)
