"""What a node spends on surviving failures, as far as a planner wants to know it.

While all is well: checkpoints and logs.  After a restart: restoring its state and handling again
what it had handled before, until it has completed the last epoch that it had completed then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["NodeWork"]


@dataclass
class NodeWork:
    """Counts of one incarnation of a node; waiting for a processor does not count.

    >>> work = NodeWork()
    >>> work.restarted(until=7, restore_s=0.5)
    >>> work.completed(6, cpu_ns=10**9), work.completed(8, cpu_ns=2 * 10**9)
    (False, True)
    >>> work.replay_s, work.completed(9, cpu_ns=3 * 10**9)
    (2.0, False)
    """

    bytes_in: int = 0
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    checkpoint_s: float = 0.0
    """Processor time to take and write them, also in a thread beside the node's host."""
    snapshot_ns: int = 0
    """The part that the node itself spent, which is in its own time."""
    restore_s: float = 0.0
    replay_s: float = 0.0
    _until: int | None = field(default=None, repr=False)

    def restarted(self, until: int, restore_s: float) -> None:
        """The node has its state again; once it had completed everything up to an epoch."""
        self.restore_s = restore_s
        self._until = until

    def completed(self, epoch: int, cpu_ns: int) -> bool:
        """The node has completed an epoch; say whether it has just caught up."""
        if self._until is None or epoch < self._until:
            return False
        self._until = None
        self.replay_s = cpu_ns / 1e9
        return True

    def saved(self, size: int, took_s: float) -> None:
        """A checkpoint is durable."""
        self.checkpoints += 1
        self.checkpoint_bytes += size
        self.checkpoint_s += took_s
