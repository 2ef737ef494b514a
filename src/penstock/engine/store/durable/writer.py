"""Checkpoints are written by one thread of a host, in the order in which they were taken."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from penstock.core.node.causal_effects import Checkpoint
from penstock.engine.host.chain_state import ChainState
from penstock.engine.store.durable.node_store import NodeStore
from penstock.engine.store.durable.stall import Stall

__all__ = ["CheckpointWriter"]

POLL_S = 0.02
WAITING_MAX = 64
"""Most checkpoints that may wait; submitting one more blocks until one is written."""


class _Job(NamedTuple):
    store: NodeStore
    key: int
    checkpoint: Checkpoint
    state: ChainState
    done: Callable[[int, float], None]


class CheckpointWriter:
    """Writes checkpoints in the background and drops the ones that they replace.

    ``done(bytes, seconds)`` is called in the writer's thread when a checkpoint is durable; else
    ``failed(store, error)`` is, and the node goes on with the checkpoint that it had.  With a
    ``stall`` it first tries for as long as that allows.
    """

    def __init__(
        self, failed: Callable[[NodeStore, Exception], None], stall: Stall | None = None
    ) -> None:
        self._failed = failed
        self._stall = stall
        self._jobs: queue.Queue[_Job | None] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(
        self,
        store: NodeStore,
        key: int,
        checkpoint: Checkpoint,
        state: ChainState,
        done: Callable[[int, float], None],
    ) -> None:
        """Write a checkpoint soon."""
        if self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="penstock-checkpoints", daemon=True
            )
            self._thread.start()
        self._jobs.put(_Job(store, key, checkpoint, state, done))

    def close(self) -> None:
        """Write what was submitted, then end; called once nothing is submitted any more."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                size, seconds = self._write(job)
            except Exception as error:
                self._failed(job.store, error)
                continue
            job.done(size, seconds)

    def _write(self, job: _Job) -> tuple[int, float]:
        """Write a checkpoint; its size, and the processor time that it took once it worked."""
        stall = self._stall
        while True:
            began = time.thread_time()
            try:
                size = job.store.write_checkpoint(job.key, job.checkpoint, job.state)
                job.store.prune()
            except OSError as error:
                if stall is None or self._closed:
                    raise
                stall.failed(error)
                while not stall.is_due() and not self._closed:
                    time.sleep(POLL_S)
            else:
                if stall is not None:
                    stall.worked()
                return size, time.thread_time() - began
