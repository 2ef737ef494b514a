"""When each epoch of a Parquet sink became visible to readers, as one of them sees it.

The kernel tells a watcher of a directory (inotify) of each name that appears in it.  Asking for the
time of the directory's last change instead would be a few milliseconds off, and listing it again
and again would disturb what is measured.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.errors import SessionError

__all__ = ["Published"]

_CREATE, _MOVED_TO = 0x100, 0x80
_EVENT = struct.Struct("iIII")
_WAIT_MS = 100


class Published:
    """Notes when ``epoch=N`` appears in a folder, while the ``with`` block lasts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen_ns: dict[int, int] = {}
        """Wall clock at which each epoch appeared."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-published", daemon=True)

    def __enter__(self) -> Published:
        self.folder.mkdir(parents=True, exist_ok=True)
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_CLOEXEC)
        path = os.fsencode(self.folder)
        if libc.inotify_add_watch(self._descriptor, path, _CREATE | _MOVED_TO) < 0:
            raise SessionError(
                f"cannot watch {self.folder}: {os.strerror(ctypes.get_errno())}; this needs Linux "
                "and a local folder"
            )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        os.close(self._descriptor)

    def tables(self) -> list[tuple[int, pa.Table]]:
        """Arrival (ns) and rows of each epoch, in the order of the epochs."""
        return [
            (seen_ns, ds.dataset(self.folder / f"epoch={epoch}", format="parquet").to_table())
            for epoch, seen_ns in sorted(self.seen_ns.items())
        ]

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while True:
            ready = poll.poll(_WAIT_MS)
            if not ready:
                if self._over.is_set():
                    return
                continue
            now_ns = time.time_ns()
            data = os.read(self._descriptor, 65_536)
            position = 0
            while position < len(data):
                *_, length = _EVENT.unpack_from(data, position)
                start = position + _EVENT.size
                position = start + length
                name = os.fsdecode(data[start:position].rstrip(b"\0"))
                if name.startswith("epoch="):
                    self.seen_ns[int(name.removeprefix("epoch="))] = now_ns
