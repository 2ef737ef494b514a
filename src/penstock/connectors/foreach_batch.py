"""foreachBatch: a function of the user's, called on the driver with each epoch's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.driver import DriverSink
from penstock.errors import NotWrittenError, SettingsError, unreachable

if TYPE_CHECKING:
    from penstock.engine.store.logs import CommitLog

__all__ = ["ForeachBatch"]


class ForeachBatch(DriverSink):
    """Calls ``func(rows, epoch)`` once per epoch that has rows, in the order of the epochs.

    The rows of an epoch are in the order of their arrival, which may differ from run to run.

    In a flow with a store an epoch is noted there, durably, when its call has returned, and never
    handed over again.  One whose call had not returned when the driver died is, with the same
    number and the same rows: a function that must not act twice remembers the last number.
    """

    kind = "foreach_batch"
    caveat = (
        "at least once: an epoch whose call has not returned when the driver dies is handed over "
        "again, with the same number"
    )

    def __init__(self, func: Callable[[pa.Table, int], object]) -> None:
        if not callable(func):
            raise SettingsError(
                f"foreachBatch: expected a function of (rows, epoch), got {type(func).__name__}"
            )
        self.func = func
        self._log: CommitLog | None = None
        self._handed: int | None = None
        self._noted: int | None = None

    def record_in(self, log: CommitLog | None) -> None:
        self._log = log
        self._handed = self._noted = None if log is None else log.last()

    def committed(self) -> int | None:
        return self._noted

    def publish(self, epoch: int, rows: pa.Table) -> None:
        if self._log is None:
            self.func(rows, epoch)
            return
        if self._handed is None or epoch > self._handed:
            self.func(rows, epoch)
            self._handed = epoch
        if self._noted != self._handed:
            try:
                self._log.commit(self._handed)
            except OSError as error:
                what = f"foreachBatch: epoch {epoch} is not noted: {error}"
                raise NotWrittenError(what) from error
            self._noted = self._handed

    def describe(self) -> str:
        return getattr(self.func, "__qualname__", type(self.func).__name__)

    def __reduce__(self) -> tuple[Any, ...]:
        return ForeachBatch, (_left_on_the_driver,)


def _left_on_the_driver(rows: pa.Table, epoch: int) -> None:
    unreachable("foreachBatch ran outside the driver", epoch=epoch)
