"""One run of a drawn flow with all its lives, many runs, and the report of what went wrong."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa

from penstock.bench.random_flows.draw import Drawn, draw, models, result_of
from penstock.bench.random_flows.rows import Difference, published
from penstock.bench.random_flows.shrink import shrink
from penstock.errors import TransientError
from penstock.testing.cluster import birth

__all__ = ["RIGHT", "RandomRuns", "Run", "compare", "run_drawn", "run_random"]

LIMIT_S = 90.0
UP_S_MAX = 180.0
GRACE_S = 15.0
"""How much later a process is killed that does not even write its stacks."""
STACKS_MAX = 20_000
TRIES = 2
RIGHT, WRONG, UNRECOVERABLE, HUNG = "right", "wrong", "unrecoverable", "hung"


@dataclass(frozen=True)
class RandomRuns:
    """How many runs, and how."""

    runs: int = 50
    seed: int = 1
    threads: bool = False
    parallel: int = 1
    limit_s: float = LIMIT_S
    keep: Path | None = None
    """Where the folders of bad runs stay."""
    shrink: bool = False
    """Whether bad flows are made smaller while they still go wrong."""

    def command(self, seed: int) -> str:
        """What repeats a run."""
        return f"penstock chaos --random --seed {seed} --runs 1{' --threads' * self.threads}"


@dataclass
class Run:
    """What became of one run."""

    drawn: Drawn
    outcome: str = RIGHT
    why: dict[str, Any] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    seconds: float = 0.0

    def bad(self, settings: RandomRuns) -> dict[str, Any]:
        """Everything that helps to find the cause."""
        return {
            "seed": self.drawn.seed,
            "outcome": self.outcome,
            "command": settings.command(self.drawn.seed),
            **self.why,
            "faults": [
                f"{fault.kind} after {fault.after_s} s{' of the start' * fault.early}"
                for fault in self.drawn.faults
            ],
            "done": dict(self.faults),
            "lives": self.lives,
            "flow": self.drawn.shape(),
            "options": self.drawn.options,
            "regime": self.drawn.regime,
        }


def run_random(
    settings: RandomRuns, on_run: Callable[[Run], None] = lambda _: None
) -> dict[str, Any]:
    """Draw flows, run them, compare; give figures."""
    seeds = range(settings.seed, settings.seed + settings.runs)
    with _Workers(settings) as workers, ThreadPoolExecutor(settings.parallel) as pool:

        def one(seed: int) -> Run:
            done = _run_kept(draw(seed), settings, workers)
            if settings.shrink and done.outcome != RIGHT:
                done.why["smallest"] = _smallest(done, settings, workers)
            on_run(done)
            return done

        done = list(pool.map(one, seeds))
    outcomes = Counter(run.outcome for run in done)
    return {
        "runs": len(done),
        **{outcome: outcomes[outcome] for outcome in (WRONG, UNRECOVERABLE, HUNG)},
        "kills": dict(sum((run.faults for run in done), Counter[str]())),
        "threads": settings.threads,
        "seed": settings.seed,
        "seconds": {
            "mean": round(sum(run.seconds for run in done) / max(1, len(done)), 1),
            "max": round(max((run.seconds for run in done), default=0.0), 1),
        },
        "bad": [run.bad(settings) for run in done if run.outcome != RIGHT],
    }


def _smallest(done: Run, settings: RandomRuns, workers: _Workers) -> dict[str, Any]:
    """The smallest flow that goes wrong in the same way, as far as two tries of each can tell."""

    def fails(drawn: Drawn) -> bool:
        runs = (_run_kept(drawn, replace(settings, keep=None), workers) for _ in range(TRIES))
        return any(run.outcome == done.outcome for run in runs)

    found = shrink(done.drawn, fails)
    return {"flow": found.shape(), "drawn": found.to_json()}


def run_drawn(drawn: Drawn, settings: RandomRuns, folder: Path) -> Run:
    """Run one flow, drawn or made by hand."""
    with _Workers(settings) as workers:
        return _run(drawn, settings, folder, workers)


def _run_kept(drawn: Drawn, settings: RandomRuns, workers: _Workers) -> Run:
    """Run a flow in a folder that stays where it was asked for and something is wrong."""
    with tempfile.TemporaryDirectory(prefix=f"penstock-{drawn.seed}-") as scratch:
        done = _run(drawn, settings, Path(scratch), workers)
        if done.outcome != RIGHT and settings.keep is not None:
            kept = settings.keep / str(drawn.seed)
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(scratch, kept)
    return done


def _run(drawn: Drawn, settings: RandomRuns, folder: Path, workers: _Workers) -> Run:
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "drawn.json").write_text(json.dumps(drawn.to_json()), encoding="utf-8")
    done = Run(drawn)
    for number in range(len(drawn.lives())):
        done.lives += 1
        said = _live(folder, number, settings.limit_s, workers)
        done.faults.update(one["kind"] for one in said if one["event"] == "fault")
        if not _went_well(done, said, folder, number):
            break
        if _word(said, "ended") is not None and not any(one.get("kind") == "stop" for one in said):
            break
    if done.outcome == UNRECOVERABLE:
        done.why["restart"] = _restarted(folder, settings.limit_s, workers)
    if done.outcome == RIGHT:
        differences = compare(drawn, folder)
        if differences:
            done.outcome, done.why = WRONG, {"sinks": differences}
    done.seconds = time.monotonic() - began
    return done


def compare(drawn: Drawn, folder: Path) -> dict[str, dict[str, int]]:
    """The sinks that differ from their models."""
    wrong: dict[str, dict[str, int]] = {}
    expected = models(drawn.steps)
    for number, step in enumerate(drawn.steps):
        result = result_of(step)
        if result is None:
            continue
        name = drawn.name_of(number)
        found = published(folder / name, pa.schema([]))
        many = len(next(iter(expected[number].values())))
        if found.num_rows:
            difference = result.compare(expected[number], found)
        else:
            difference = Difference(0, many, 0)
        late = published(folder / f"{name}_late", pa.schema([])).num_rows
        if late or not difference.none:
            wrong[name] = {
                "expected": many,
                "rows": difference.rows,
                "missing": difference.missing,
                "extra": difference.extra,
                "late": late,
            }
    return wrong


def _went_well(done: Run, said: list[dict[str, Any]], folder: Path, number: int) -> bool:
    """Whether the run may go on after a life; notes why not."""
    hung, error = _word(said, "hung"), _word(said, "error")
    if hung is not None:
        stacks = folder / f"{number}.stacks"
        text = stacks.read_text(encoding="utf-8", errors="replace") if stacks.exists() else ""
        done.outcome = HUNG
        done.why = {"life": number, "standing": hung, "stacks": text[:STACKS_MAX]}
    elif error is not None:
        done.outcome = UNRECOVERABLE
        done.why = {"life": number, "error": error["kind"], "text": error["text"]}
    elif _word(said, "ended") is None and not any(one.get("kind") == "driver" for one in said):
        done.outcome = UNRECOVERABLE
        done.why = {"life": number, "error": "died", "text": _word(said, "died") or "no word"}
    return done.outcome == RIGHT


def _restarted(folder: Path, limit_s: float, workers: _Workers) -> str:
    """How a flow that broke fares when it is started again, with no more faults."""
    said = _live(folder, 99, limit_s, workers)
    error = _word(said, "error")
    if error is not None:
        return f"{error['kind']}: {error['text']}"
    return "came to its end" if _word(said, "ended") is not None else "hung"


# -- processes -----------------------------------------------------------------------------------


def _live(folder: Path, number: int, limit_s: float, workers: _Workers) -> list[dict[str, Any]]:
    """Let a process run the flow once; what it said."""
    with workers.one() as worker:
        answered = worker.order(f"{folder} {number} {limit_s}", limit_s + GRACE_S)
        path = folder / f"{number}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        said: list[dict[str, Any]] = [json.loads(line) for line in lines]
        if not answered:
            text = worker.end()
            below = [one["below"] for one in said if "below" in one]
            _end_all(below[-1] if below else {})
            if not said or said[-1]["event"] in ("running", "missed"):
                said.append({"event": "died", "text": text})
        if _word(said, "ended") is None:
            worker.end()
        return said


def _end_all(processes: dict[str, str | None]) -> None:
    """End what a driver has left behind, unless it is gone by itself."""
    for pid, born in processes.items():
        if born is not None and birth(int(pid)) == born:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


class _Worker:
    """A process that runs flows; see :mod:`penstock.bench.random_flows.life`."""

    def __init__(self, threads: bool, log: Path) -> None:
        command = [sys.executable, "-m", "penstock.bench.random_flows.life"]
        self._log = log
        self._is_up = False
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, "threads" if threads else "spark"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    @property
    def lives(self) -> bool:
        """Whether it can be given something to do."""
        return self._process.poll() is None

    def order(self, text: str, within_s: float) -> bool:
        """Give it something to do; whether it was done in time."""
        if not self._is_up and not self._said("UP", UP_S_MAX):
            raise TransientError(f"chaos: a process did not come up; it said:\n{self.end()}")
        self._is_up = True
        if self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return False
        return self._said("DONE", within_s)

    def _said(self, word: str, within_s: float) -> bool:
        """Whether that is the next word of the process, in time."""
        answers = self._process.stdout
        if answers is None:
            return False
        ready = select.poll()
        ready.register(answers, select.POLLIN)
        if not ready.poll(within_s * 1000):
            return False
        return answers.readline().strip() == word.encode()

    def end(self) -> str:
        """End it; gives the last that it said to standard error."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(GRACE_S if self.lives else 0.1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(GRACE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return self._log.read_text(encoding="utf-8", errors="replace")[-2000:]


class _Workers:
    """Processes to run flows in.  One with a Spark session is used again while all goes well."""

    def __init__(self, settings: RandomRuns) -> None:
        self._threads = settings.threads
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._scratch = tempfile.TemporaryDirectory(prefix="penstock-workers-")

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        while not self._idle.empty():
            self._idle.get().end()
        self._scratch.cleanup()

    @contextmanager
    def one(self) -> Iterator[_Worker]:
        """A process for one life."""
        try:
            worker = self._idle.get_nowait()
        except Empty:
            worker = self._new()
        if self._threads and self._idle.empty():
            self._idle.put(self._new())  # so that the next life need not wait for its process
        try:
            yield worker
        except BaseException:
            worker.end()
            raise
        if self._threads or not worker.lives:
            worker.end()
        else:
            self._idle.put(worker)

    def _new(self) -> _Worker:
        log = Path(self._scratch.name) / f"{time.monotonic_ns()}.log"
        return _Worker(self._threads, log)


def _word(said: list[dict[str, Any]], event: str) -> dict[str, Any] | None:
    return next((one for one in said if one["event"] == event), None)
