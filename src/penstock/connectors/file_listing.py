"""Which files a path stands for: a directory and all below it, a glob pattern, or one file.

Names that start with ``_`` or ``.``, or that say that they are unfinished, are left out, and so is
everything below a directory with such a name.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from penstock.errors import SourceError

__all__ = ["FileEntry", "Listing", "shown"]

_HIDDEN = ("_", ".")
_UNFINISHED = (".tmp", "._COPYING_")


@dataclass(frozen=True)
class FileEntry:
    """A file as it was found; the path is relative to the listing's root."""

    path: str
    size: int
    mtime_ns: int


class Listing:
    """The files of a path, listed anew whenever asked."""

    def __init__(self, path: str, pattern: str | None = None) -> None:
        self.path = path
        self.root = _root(path)
        """The path itself, or the directory above its first wildcard."""
        self.pattern = pattern

    def check(self) -> None:
        """Refuse a path that is not there or may not be read."""
        if not os.path.exists(self.root):
            raise SourceError(
                f"files: {self.root} does not exist; make it before the start, or mend the path",
                path=self.root,
            )
        needed = os.R_OK | (os.X_OK if os.path.isdir(self.root) else 0)
        if not os.access(self.root, needed):
            raise SourceError(f"files: {self.root} may not be read by this user", path=self.root)

    def new(
        self,
        known: Mapping[str, FileEntry],
        wanted: Callable[[str], bool] = lambda name: True,
        changed: Callable[[FileEntry], None] = lambda entry: None,
    ) -> list[FileEntry]:
        """The files that are not known and whose relative path is wanted, oldest first.

        ``changed`` is told of known ones that were changed or replaced.
        """
        found = []
        start = len(self.root.rstrip(os.sep)) + 1
        for path in self._walk():
            relative = path[start:] or os.path.basename(path)
            before = known.get(relative)
            if before is None and not wanted(relative):
                continue
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            entry = FileEntry(relative, status.st_size, status.st_mtime_ns)
            if before is None:
                found.append(entry)
            elif entry != before:
                changed(entry)
        return sorted(found, key=lambda entry: (entry.mtime_ns, entry.path))

    def absolute(self, relative: str) -> str:
        """Where a listed file is."""
        single = self.path == self.root and os.path.isfile(self.root)
        return self.root if single else os.path.join(self.root, relative)

    def _walk(self) -> Iterator[str]:
        if self.path == self.root:
            if os.path.isfile(self.root):
                yield self.root
            else:
                yield from self._below(self.root)
            return
        for path in glob.glob(self.path, recursive=True):
            if any(part.startswith(_HIDDEN) for part in path[len(self.root) :].split(os.sep)):
                continue
            if os.path.isdir(path):
                yield from self._below(path)
            elif self._visible(os.path.basename(path)):
                yield path

    def _below(self, directory: str) -> Iterator[str]:
        try:
            entries = list(os.scandir(directory))
        except FileNotFoundError:
            if directory == self.root:
                raise SourceError(f"files: {self.root} is gone", path=self.root) from None
            return
        for entry in entries:
            if entry.name.startswith(_HIDDEN):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._below(entry.path)
            elif self._visible(entry.name):
                yield entry.path

    def _visible(self, name: str) -> bool:
        if name.startswith(_HIDDEN) or name.endswith(_UNFINISHED):
            return False
        return self.pattern is None or fnmatch.fnmatch(name, self.pattern)


def shown(path: str) -> str:
    """A path for messages: what is not UTF-8 in it is spelled out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _root(path: str) -> str:
    if os.path.exists(path) or not glob.has_magic(path):
        return path
    parts = path.split(os.sep)
    first = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return os.sep.join(parts[:first]) or os.sep
