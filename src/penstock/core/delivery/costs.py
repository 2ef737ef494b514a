"""What protection costs in messages and bytes, from the sizes of the machines' own messages.

Per stage and parcel, with R replicas: records and mirrors go to R - 1 siblings once when a parcel
comes and once (ids only) when it is settled, and each sibling confirms.  All of these are shared by
the parcels of a batch; only the records themselves, or the rows, are paid per parcel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from penstock.core.delivery.messages import (
    ACKNOWLEDGE_BYTES,
    HEADER_BYTES,
    ID_BYTES,
    RECORD_BYTES,
)

__all__ = ["Cost", "break_even_bytes", "cost_of"]


@dataclass(frozen=True)
class Cost:
    """Of one parcel at one stage."""

    messages: float
    """Besides the delivery itself."""
    sibling_bytes: float
    """Between replicas."""
    origin_bytes: float
    """Between stages, besides the delivery."""


def cost_of(
    parcel_bytes: int, replicas: int, batch: int = 1, depth: int = 1, mirrored: bool = False
) -> Cost:
    """What records (or mirrored rows) cost for a parcel, when ``batch`` parcels travel together.

    >>> cost_of(1_000, 4).sibling_bytes == cost_of(100, 4).sibling_bytes
    True
    >>> cost_of(1_000, 4, mirrored=True).sibling_bytes - cost_of(0, 4, mirrored=True).sibling_bytes
    3000.0
    """
    siblings = replicas - 1
    shares = 2 * siblings
    headers = 2 * shares * HEADER_BYTES / batch  # each share is confirmed
    records = shares * RECORD_BYTES
    rows = siblings * parcel_bytes if mirrored else 0
    told = 2 if mirrored else depth + 1
    return Cost(
        (2 * shares + told) / batch,
        headers + records + rows,
        told * (HEADER_BYTES / batch + ACKNOWLEDGE_BYTES),
    )


def break_even_bytes(replicas: int, batch: int = 1, depth: int = 1) -> int:
    """The parcel size from which records move fewer bytes than a bare mirror.

    A bare mirror, the paper's, sends each parcel to all siblings and nothing else: it never purges
    and tells no origin.  (Against mirroring as it is done here, which has to do both, records of
    depth 1 win from the first byte.)

    >>> break_even_bytes(2), break_even_bytes(4), break_even_bytes(2, batch=100)
    (186, 129, 68)
    """
    siblings = replicas - 1
    cost = cost_of(0, replicas, batch, depth)
    bare = siblings * (HEADER_BYTES / batch + ID_BYTES)
    return max(1, ceil((cost.sibling_bytes + cost.origin_bytes - bare) / siblings))
