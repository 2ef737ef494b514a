"""Diffs: who sent what a message was made from (thesis, Section 3.1.1).

A diff is a chain of links, the sender first: ``B:5 [A:8 [S:3]]`` says that B's step 5 handled A's
message 8, which A had made from S's message 3.  Each link also has the epoch of the message that
carried it.  A chain ends

- at a *completion*: what a node makes when an epoch is complete depends on the set of its inputs up
  to that epoch, not on any one of them.  The last link is ``COMPLETION`` with the epoch;
- at a source, whose inputs are ranges of offsets: the last link is :func:`origin` with the stamp
  (end, start);
- after a node with durable determinants, which knows its own past.

A chain is therefore at most as long as the longest path without determinants, plus one, and does
not depend on the number of shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.core.causal.times import Stamp, show

__all__ = ["COMPLETION", "Diff", "DiffLink", "completion", "origin", "pairs", "show_diff"]

COMPLETION = -1
"""Stands where a sender would: the node handled the completion of an epoch."""


class DiffLink(NamedTuple):
    """One node's message: its sender, its stamp, its epoch."""

    node: int
    stamp: Stamp
    epoch: int
    values: bytes = b""
    """In determinants: what the step has noted."""


Diff = tuple[DiffLink, ...]


def origin(source: int) -> int:
    """The row of a source's own input.

    >>> origin(0), origin(3)
    (-2, -5)
    """
    return -2 - source


def completion(epoch: int) -> DiffLink:
    """The input that says that an epoch is complete."""
    return DiffLink(COMPLETION, (epoch,), epoch)


def pairs(diff: Diff) -> Iterator[tuple[DiffLink, DiffLink | None]]:
    """Each real node's link with what it was made from, if the chain says it.

    >>> [(a.node, b and b.node) for a, b in pairs((DiffLink(2, (5,), 0), DiffLink(1, (8,), 0)))]
    [(2, 1), (1, None)]
    """
    for position, link in enumerate(diff):
        if link.node >= 0:
            yield link, diff[position + 1] if position + 1 < len(diff) else None


def show_diff(diff: Diff) -> str:
    """The thesis's notation.

    >>> show_diff((DiffLink(2, (5,), 0), DiffLink(1, (8,), 0), DiffLink(-2, (30, 20), 0)))
    '2:5 [1:8 [rows 20..30]]'
    """
    text = ""
    for link in reversed(diff):
        if link.node == COMPLETION:
            this = f"epoch {link.epoch}"
        elif link.node < COMPLETION:
            this = f"rows {link.stamp[1]}..{link.stamp[0]}"
        else:
            this = f"{link.node}:{show(link.stamp)}"
        text = f"{this} [{text}]" if text else this
    return text
