"""Closes what a flow has open: all of it, whatever goes wrong on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from penstock.errors import PenstockError

__all__ = ["close_all"]

log = logging.getLogger(__name__)


def close_all(closers: Iterable[Callable[[], object]]) -> PenstockError | None:
    """Call all of these; give the first error that one raises, or returns.

    >>> def broken() -> None: raise PenstockError("the disk is gone")
    >>> closed = []
    >>> str(close_all([broken, lambda: closed.append("store")])), closed
    ('the disk is gone', ['store'])
    """
    first: PenstockError | None = None
    for close in closers:
        found = _closed(close)
        first = first or found
    return first


def _closed(close: Callable[[], object]) -> PenstockError | None:
    try:
        found = close()
    except PenstockError as error:
        return error
    except Exception as error:
        log.exception("while a flow was closed")
        return PenstockError(f"while the flow was closed: {type(error).__name__}: {error}")
    return found if isinstance(found, PenstockError) else None
