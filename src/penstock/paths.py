"""Paths of the local file system, in the forms in which people give them."""

from __future__ import annotations

import os
import re

from penstock.errors import UsageError

__all__ = ["local_path"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def local_path(path: str | os.PathLike[str], what: str, error: type[UsageError]) -> str:
    """The absolute path; ``file:`` addresses are understood, others refused with ``error``.

    >>> local_path("file:///data/in", "files", UsageError)
    '/data/in'
    """
    text = os.fspath(path)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    elif _SCHEME.match(text):
        raise error(
            f"{what}: {text} is not a path of the local (or a mounted) file system; only those "
            "can be used",
            path=text,
        )
    return os.path.abspath(text)
