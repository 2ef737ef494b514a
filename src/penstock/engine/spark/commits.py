"""The record of how far each sink has got, on the driver."""

from __future__ import annotations

from penstock.engine.spark.stalls import Stalls
from penstock.engine.store import FlowStore

__all__ = ["Commits"]


class Commits:
    """Records commits; what the store does not take waits, and counts as not committed.

    Only the newest epoch of a sink matters, so that is all that waits.  Without ``stalls``, where
    there is no recovery, nothing waits: what cannot be recorded ends the flow.
    """

    def __init__(self, store: FlowStore | None, resume: int, stalls: Stalls | None) -> None:
        self._store = store
        self._resume = resume
        self._stall = None if stalls is None else stalls.new("the record of commits")
        self._waiting: dict[str, int] = {}
        self._recorded: dict[str, int] = {}

    def add(self, sink: str, epoch: int) -> None:
        """Every epoch of a sink up to this one is complete."""
        if self._store is not None:
            self._waiting[sink] = epoch
            self._write(self._store)

    def last(self, sink: str, completed: int) -> int:
        """The last epoch of a sink that is recorded, where one must be."""
        return self._recorded.get(sink, self._resume) if sink in self._waiting else completed

    def try_again(self) -> None:
        """Record what waits, now and then."""
        if self._store is not None and self._waiting and self._stall and self._stall.is_due():
            self._write(self._store)

    def _write(self, store: FlowStore) -> None:
        for sink, epoch in list(self._waiting.items()):
            try:
                store.commits(sink).commit(epoch)
            except OSError as error:
                if self._stall is None:
                    raise
                self._stall.failed(error)
                return
            del self._waiting[sink]
            self._recorded[sink] = epoch
        if self._stall is not None:
            self._stall.worked()
