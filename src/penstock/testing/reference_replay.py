"""Every solution of a replay table, by trying all: slow, and obviously right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from penstock.core.causal.table import Key, Pending, is_valid

__all__ = ["all_tables"]


def all_tables(
    pending: Sequence[Pending], targets: Mapping[int, Key], resume: Mapping[str, int], first: int
) -> Iterator[dict[int, Key]]:
    """All tables in which exactly the messages with a later target in their row are placed."""
    sent = [m for m in pending if m.children or m.key in set(targets.values())]
    wanted = [
        m.key
        for m in sent
        if m.key not in set(targets.values())
        and any(parent == m.parent and time > m.time for parent, time in targets.values())
    ]
    last = max(targets, default=first - 1)
    free = [at for at in range(first, last + 1) if at not in targets]
    for columns in permutations(free, len(wanted)):
        table = {**targets, **dict(zip(columns, wanted, strict=True))}
        if is_valid(table, sent, targets, resume):
            yield table
