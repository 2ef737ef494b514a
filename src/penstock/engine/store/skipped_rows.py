"""Which rows stages pass over because no process survives them, in the flow's store.

One file, written anew for each row that is found, before any node passes over it.  It is never
forgotten: a later run that makes an old epoch again must pass over the same rows.
"""

from __future__ import annotations

import json

from penstock.core.control.deadly_rows import SkippedRow
from penstock.errors import SettingsError
from penstock.storage import Storage

__all__ = ["SKIPPED", "SkippedRows"]

SKIPPED = "skipped.json"


class SkippedRows:
    """The record of one flow."""

    def __init__(self, storage: Storage, sync: bool) -> None:
        self._storage = storage
        self._sync = sync

    def read(self) -> list[SkippedRow]:
        """The rows that are passed over."""
        try:
            return [SkippedRow(**row) for row in json.loads(self._storage.read(SKIPPED))]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as error:
            path = f"{self._storage}/{SKIPPED}"
            raise SettingsError(
                f"{path} is damaged ({error}); restore it, or remove it: rows that no process "
                "survives are found again, but published epochs may not be made again as they were",
                path=path,
            ) from error

    def add(self, row: SkippedRow) -> None:
        """Make one more row durable."""
        rows = [*self.read(), row]
        plain = json.dumps([one._asdict() for one in rows], indent=1)
        self._storage.write(SKIPPED, plain.encode(), self._sync)
