"""``penstock bench recovery``: how long a flow is held up when its sharder is killed.

The workload is that of the thesis, Section 5 (:mod:`penstock.demos.votes`).  The process of the
stateless sharder is killed again and again; a trial lasts from the signal until probes that are
sent every 10 ms take at most twice their normal p99 again, so detection and catching up count.
*Causal* restarts the sharder alone; the *baseline* purges everything behind it and rebuilds it from
the sources at the speed at which they were loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.api.start_options import RecoveryName
from penstock.demos.votes import Votes
from penstock.engine.spark.session import local_session
from penstock.errors import InvariantError, TransientError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bench_recovery", "trials_of"]

MODES: dict[str, RecoveryName] = {"causal": "causal", "baseline": "purge"}
"""What is compared, and the ``recovery`` that a flow is started with for it."""
VOTES_PER_S = 10_000
EPOCH = "50 ms"
CHECKPOINT = "10 seconds"
NORMAL_S = 2.0
PAUSE_S = 1.5
LOAD_S_MAX = 300.0
TRIAL_S_MAX = 120.0
SHARDS = 2
STANDBY = 1
"""A host that is kept ready; both kinds have it."""


def bench_recovery(articles: Sequence[int], trials: int, quiet: bool = False) -> dict[str, Any]:
    """Run all trials; give medians and quartiles per number of articles."""
    measured: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    normal: dict[str, list[float]] = {mode: [] for mode in MODES}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    spark = local_session("penstock bench recovery", hosts=3 + 2 * SHARDS + STANDBY)
    try:
        with Progress(*columns, console=stderr, transient=True, disable=quiet) as progress:
            task = progress.add_task("", total=len(articles) * len(MODES) * trials)
            for number in articles:
                for mode, option in MODES.items():
                    progress.update(task, description=f"{number:,} articles, {mode}")
                    seconds, p99_ms = trials_of(
                        spark, number, option, trials, lambda: progress.advance(task)
                    )
                    measured[mode].append(seconds)
                    normal[mode].append(round(p99_ms, 1))
                    _say(number, mode, seconds)
    finally:
        spark.stop()
    result: dict[str, Any] = {"articles": list(articles)}
    for mode, rows in measured.items():
        result[f"{mode}_s"] = [_quantile(seconds, 50) for seconds in rows]
    for mode, rows in measured.items():
        result[f"{mode}_quartiles"] = [[_quantile(s, q) for q in (25, 75)] for s in rows]
    causal, baseline = result["causal_s"], result["baseline_s"]
    result["ratio"] = [round(b / c, 2) for c, b in zip(causal, baseline, strict=True)]
    result["normal_p99_ms"] = normal
    result["trials"] = trials
    return result


def trials_of(
    spark: SparkSession,
    articles: int,
    recovery: RecoveryName,
    trials: int,
    after: Callable[[], None] = lambda: None,
) -> tuple[list[float], float]:
    """Seconds of each trial, and the probes' normal p99 (ms); all sums are checked.

    The baseline is given a new run for each trial: it replays all epochs since the start, and
    would otherwise take longer from trial to trial.
    """
    if recovery != "purge":
        return _run(spark, articles, recovery, trials, after)
    seconds, normal_ms = zip(
        *(_run(spark, articles, recovery, 1, after) for _ in range(trials)), strict=True
    )
    return [each for (each,) in seconds], max(normal_ms)


def _run(
    spark: SparkSession,
    articles: int,
    recovery: RecoveryName,
    trials: int,
    after: Callable[[], None],
) -> tuple[list[float], float]:
    votes = Votes(articles, VOTES_PER_S, SHARDS)
    query = votes.flow.start(
        spark,
        hosts=votes.hosts,
        recovery=recovery,
        standby=STANDBY,
        epochInterval=EPOCH,
        checkpointInterval=CHECKPOINT,
    )
    seconds: list[float] = []
    try:
        votes.probe.start()
        votes.load(LOAD_S_MAX)
        normal_ms = float(np.percentile(votes.probe.normal_ms(NORMAL_S), 99))
        for trial in range(trials):
            if trial:  # the next host to stand by must be up, and the epoch at another moment
                time.sleep(PAUSE_S + 0.0137 * (trial % 7))
            since_ns = time.perf_counter_ns()
            query.kill("sharder[0]")
            took = votes.probe.recovered_s(since_ns, 2 * normal_ms, TRIAL_S_MAX)
            if took is None:
                raise TransientError(
                    f"trial {trial + 1}: the flow has not recovered within {TRIAL_S_MAX:g} s; "
                    f"its recoveries: {query.recoveries[-1:]}"
                )
            seconds.append(took)
            after()
        votes.close()
    finally:
        query.stop()
    votes.probe.join(5)
    if votes.wrong() or votes.probe.missing:
        raise InvariantError(
            f"{articles} articles, recovery={recovery!r}: the sums are {votes.wrong()} off, "
            f"{votes.probe.missing} probes are missing"
        )
    return seconds, normal_ms


def _quantile(seconds: Sequence[float], percent: float) -> float:
    return round(float(np.percentile(seconds, percent)), 3)


def _say(articles: int, mode: str, seconds: Sequence[float]) -> None:
    stderr.print(
        f"{articles:,} articles, {mode}: {_quantile(seconds, 50)} s "
        f"({_quantile(seconds, 25)} to {_quantile(seconds, 75)})",
        highlight=False,
    )
