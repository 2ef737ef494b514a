"""The record of how far each sink has got, on the driver."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.progress.marks import EPOCH_END
from penstock.engine.driver.stalls import Stalls
from penstock.engine.store.flow_store import FlowStore

__all__ = ["Commits"]


class Commits:
    """Records commits; what the store does not take waits, and counts as not committed.

    Only the newest epoch of a sink matters, so that is all that waits.  Without ``stalls``, where
    there is no recovery, nothing waits: what cannot be recorded ends the flow.
    """

    def __init__(
        self, store: FlowStore | None, sinks: Iterable[str], resume: int, stalls: Stalls | None
    ) -> None:
        self._store = store
        self._stall = None if stalls is None else stalls.new("the record of commits")
        self._waiting: dict[str, int] = {}
        # A sink goes on where it was, wherever the others were: what it does not need is gone.
        self._recorded = {sink: _recorded(store, sink, resume) for sink in sinks}

    def add(self, sink: str, epoch: int) -> None:
        """Every epoch of a sink up to this one is complete."""
        if self._store is not None:
            self._waiting[sink] = epoch
            self._write(self._store)

    def last(self, sink: str, completed: int) -> int:
        """The last epoch of a sink that is recorded, where one must be."""
        recorded = self._recorded[sink]
        return recorded if sink in self._waiting else max(completed, recorded)

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


def _recorded(store: FlowStore | None, sink: str, resume: int) -> int:
    """How far an earlier run has got with a sink; all sinks have ``resume``."""
    last = None if store is None else store.commits(sink).last()
    return resume if last is None or last >= EPOCH_END else max(resume, last)
