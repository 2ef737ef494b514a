"""Hands completed epochs to a job, range by range: when, how often again, and what is said of it.

One runner per stage, in a thread of its own on the driver.  It knows nothing of Spark: what a job
is (read these files, write a result there) is given to it.

    waiting --a range is due--> running --result published--> waiting
    running --it failed, retries left--> running
    running --it failed for good--> failed --the next call is due--> running

A range that was begun keeps its bounds until it has a result, whatever happens in between: so a
function that acts outside the flow can tell by the epoch what it has done already.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from penstock.connectors.spark_folder import Range
from penstock.connectors.spark_stage import SparkWork
from penstock.errors import FunctionError, PenstockError, SchemaError

__all__ = ["FrameJob", "FrameRunner"]

log = logging.getLogger(__name__)

PAUSE_S = 0.2
PAUSE_MAX_S = 5.0
"""How long to wait before the first and before any further attempt."""
REASON_MAX = 600


class FrameJob(Protocol):
    """What a range of epochs is handed to."""

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """The thread that will run the jobs, not yet started."""

    def begin(self) -> None:
        """Called once, in the thread that will run the jobs."""

    def run(self, epochs: Range, rows: Path, result: Path) -> None:
        """Read the files in ``rows``, write those of the result; raise if that is impossible."""

    def merge(self, rows: Path, merged: Path) -> None:
        """Write the rows of many small files into few."""

    def cancel(self) -> None:
        """End what runs now, from another thread."""


class FrameRunner:
    """The thread of one stage with Spark jobs."""

    def __init__(
        self,
        name: str,
        work: SparkWork,
        job: FrameJob,
        on_broken: Callable[[PenstockError], None],
    ) -> None:
        self.name = name
        self.failure: PenstockError | None = None
        """Why the last call failed, None if it did not."""
        self._work = work
        self._folder = work.folder
        self._job = job
        self._on_broken = on_broken
        self._run_id = uuid.uuid4().hex
        self._changed = threading.Condition()
        self._complete = -1
        self._input_ended = False
        self._stopped = False
        self._state = "waiting"
        self._range: Range | None = None
        self._attempt = 0
        self._jobs = self._failures = 0
        self._seconds: float | None = None
        self._due_s = 0.0
        self._failed_at = -1
        self._thread = job.thread(self._main, f"penstock-spark-{name}")
        self._thread.daemon = True

    # -- called by the controller ----------------------------------------------------------------

    def start(self) -> None:
        """Begin to hand over what is due."""
        self._due_s = time.monotonic() + (self._work.every_us or 0) / 1e6
        self._thread.start()

    def advance(self, epoch: int) -> None:
        """Every epoch up to this one is published, those without rows included."""
        with self._changed:
            self._complete = max(self._complete, epoch)
            self._changed.notify_all()

    def input_ended(self) -> None:
        """No more epochs will come: hand over the rest."""
        with self._changed:
            self._input_ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Hand over nothing more, and let what runs now end without a result."""
        with self._changed:
            if self._stopped:
                return
            self._stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._job.cancel()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False if it is still inside the user's function."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def figures(self) -> dict[str, Any]:
        """What the flow's progress says of the stage."""
        done = self._folder.done()
        waiting = [epoch for epoch in self._folder.epochs() if epoch > done]
        failure = self.failure
        return {
            "name": self.name,
            "state": self._state,
            "epochs": None if self._range is None else list(self._range),
            "attempt": self._attempt,
            "reason": None if failure is None else failure.message,
            "doneEpoch": done,
            "behindEpochs": max(0, max(self._complete, *waiting, -1) - done),
            "waitingEpochs": len(waiting),
            "waitingBytes": self._folder.waiting_bytes() if waiting else 0,
            "jobs": self._jobs,
            "failedAttempts": self._failures,
            "lastSeconds": self._seconds,
        }

    # -- the thread ------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._job.begin()
            while True:
                epochs = self._await_range()
                if epochs is None:
                    break
                self._hand_over(epochs)
            if not self._stopped:
                self._folder.end(self._folder.done())
        except Exception as error:
            # Not the user's function: the folder cannot be used any more.
            if not self._stopped:
                log.exception("stage %r cannot hand over its epochs", self.name)
                broken = PenstockError(
                    f"stage {self.name!r} cannot hand over its epochs ({_reason(error)}); is "
                    f"{self._folder.path} there, and has the disk room?",
                    stage=self.name,
                )
                self._fail(broken)
                self._on_broken(broken)

    def _await_range(self) -> Range | None:
        """Wait for the next range; None: there will be none."""
        with self._changed:
            while not self._stopped:
                ended = self._input_ended
                due = self._due(ended)
                if due is not None:
                    return due
                if ended:
                    return None
                left = None
                if self._work.every_us is not None:
                    left = max(0.01, self._due_s - time.monotonic())
                self._changed.wait(left)
        return None

    def _due(self, ended: bool) -> Range | None:
        """The range to hand over now, if any."""
        begun = self._folder.begun()
        if begun is not None:
            return begun if self._may_try(ended) else None
        timed = self._work.every_us is not None
        if timed and not ended and time.monotonic() < self._due_s:
            return None
        done = self._folder.done()
        waiting = [epoch for epoch in self._folder.epochs() if epoch > done]
        if not waiting:
            if timed:
                self._next_due()
            return None
        # What is published is complete, even if that was not said yet: after a restart, and when
        # the end of the input overtakes the end of its last epoch.
        last = max(self._complete, waiting[-1])
        if self._work.every_epochs is not None:
            every = self._work.every_epochs
            group = (waiting[0] // every + 1) * every - 1
            if group <= last:
                last = group
            elif not ended:
                return None
        return Range(done + 1, last)

    def _may_try(self, ended: bool) -> bool:
        """Whether a range that was begun is to be tried (again) now."""
        if self.failure is None:
            return True  # of an earlier run
        if ended:
            return self._state != "given up"
        if self._work.every_epochs is not None:
            return self._complete >= self._failed_at + self._work.every_epochs
        return time.monotonic() >= self._due_s

    def _next_due(self) -> None:
        """By the clock, without catching up on calls that were missed."""
        if self._work.every_us is not None:
            every_s = self._work.every_us / 1e6
            self._due_s = max(self._due_s + every_s, time.monotonic())

    def _hand_over(self, epochs: Range) -> None:
        """One call, with its retries."""
        ended = self._input_ended
        self._range, self._state = epochs, "running"
        self._folder.begin(epochs)
        attempts = self._work.retries + 1
        for attempt in range(1, attempts + 1):
            self._attempt = attempt
            try:
                self._try(epochs)
            except Exception as raised:
                if self._stopped:
                    return
                self._failures += 1
                error = self._error(epochs, raised, attempt, attempts)
                log.warning("%s", error.message)
                if attempt == attempts or isinstance(raised, SchemaError):
                    self._fail(error, ended)
                    return
                pause_s = min(PAUSE_MAX_S, PAUSE_S * 4 ** (attempt - 1))
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped, pause_s)
            else:
                if not self._stopped:
                    self._done_with(epochs)
                return

    def _done_with(self, epochs: Range) -> None:
        """A range has its result."""
        self._folder.forget(self._work.kept_from(epochs))
        if self._work.keep == "all":
            self._merge(epochs)
        self._range, self._state, self._attempt = None, "waiting", 0
        self.failure = None
        self._next_due()

    def _try(self, epochs: Range) -> None:
        work, folder = self._work, self._folder
        began = time.monotonic()
        rows, result = folder.workplace(self._run_id, epochs, work.since(epochs))
        self._job.run(epochs, rows, result)
        if self._stopped:
            return
        folder.publish(epochs, result)
        self._jobs += 1
        self._seconds = round(time.monotonic() - began, 3)

    def _merge(self, epochs: Range) -> None:
        """Rows that are kept for ever are kept in few files."""
        rows, merged = self._folder.workplace(self._run_id, epochs, epochs.first)
        try:
            self._job.merge(rows, merged)
        except Exception as error:
            if not self._stopped:
                log.warning(
                    "stage %r: the rows of epochs %d to %d stay in many small files: %s",
                    self.name,
                    *epochs,
                    _reason(error),
                )
        else:
            self._folder.keep(epochs, merged)

    def _fail(self, error: PenstockError, ended: bool = False) -> None:
        self.failure = error
        self._range = None
        self._state = "given up" if ended else "failed"
        self._failed_at = self._complete
        if self._work.every_us is not None:
            self._due_s = time.monotonic() + self._work.every_us / 1e6

    def _error(
        self, epochs: Range, raised: Exception, attempt: int, attempts: int
    ) -> PenstockError:
        kind = SchemaError if isinstance(raised, SchemaError) else FunctionError
        return kind(
            f"stage {self.name!r}, epochs {epochs.first} to {epochs.last}, attempt {attempt} of "
            f"{attempts}: {_reason(raised)}; its rows are kept, and handed over again with the "
            "next call or when the flow is started again",
            stage=self.name,
            first_epoch=epochs.first,
            epoch=epochs.last,
        )


def _reason(error: Exception) -> str:
    """What an error says, short; Java's are followed by pages of stack."""
    text = str(error).strip().partition("\nJVM stacktrace")[0]
    text = " ".join(text.split("\n\tat ")[0].split())
    short = text if len(text) <= REASON_MAX else f"{text[:REASON_MAX]} …"
    return short if isinstance(error, PenstockError) else f"{type(error).__name__}: {short}"
