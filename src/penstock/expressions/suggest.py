"""Hints at the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["nearest"]


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence: a question with the most similar name, or just a semicolon.

    >>> nearest("evnt_type", ["event_type", "ad_id"])
    "; did you mean 'event_type'?"
    >>> nearest("price", ["event_type"])
    ';'
    """
    lowered = {other.lower(): other for other in reversed(list(names))}
    close = get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ";"
