"""What keeps a process from answering at once, and what is done about each.

The defaults are the remedies; ``penstock bench barrier --stalls`` switches them off one by one and
measures a round without each.  See "Micro-stragglers" in the Naiad paper (Section 3.5).
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass

__all__ = ["Tuning"]


@dataclass(frozen=True)
class Tuning:
    """Settings of a host's process."""

    passing_bytes: int = 256 << 10
    """Up to this much waiting, messages are written by the thread that sends them, instead of
    waking another one; 0: never."""
    switch_interval_s: float = 0.0005
    """How long a thread may compute before another one gets its turn (Python's own: 0.005)."""
    gc_threshold: int = 50_000
    """Objects made before Python looks for cycles (Python's own: 700): a node's loop makes few."""
    gc_freeze: bool = True
    """Whether what exists at the start is left out of every collection."""

    def apply(self) -> None:
        """Set up this process."""
        sys.setswitchinterval(self.switch_interval_s)
        if self.gc_freeze:
            gc.collect()
            gc.freeze()
        gc.set_threshold(self.gc_threshold, 20, 100)
