"""Functions that end their process or raise, and hosts that are lost at awkward moments."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.regimes import Replicated
from penstock.api.start_options import RunOptions
from penstock.api.vertex import Time, Vertex
from penstock.connectors.memory import MemorySink
from penstock.core.control import deadly_rows, giving_up
from penstock.core.control.deadly_rows import SkippedRow
from penstock.core.control.giving_up import LOSSES_MAX, Losses
from penstock.engine.driver.recovery import Recovery
from penstock.engine.store.skipped_rows import SkippedRows
from penstock.errors import (
    FunctionError,
    HostLostError,
    InvariantError,
    SettingsError,
    TransientError,
)
from penstock.testing import local
from penstock.testing.held_input import hold_input
from penstock.testing.kills import await_epochs, await_recovery
from penstock.testing.local import LocalQuery, die, run_local, start_local

WAIT_S = 60.0
ROWS = 4_000
BAD = 1_500
"""The row that functions do not survive."""

Batches = Iterator[pa.RecordBatch]


def numbers(offset: int, n: int) -> pa.RecordBatch:
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {
            "n": pa.array(offsets, pa.int64()),
            "key": pa.array([o % 7 for o in offsets], pa.int64()),
        }
    )


def source(flow: Flow, rows: int = ROWS, rate: float = 8_000) -> Stream:
    return flow.generate(numbers, rate=rate, rows=rows, shards=2, name="numbers")


def ends_its_host(batches: Batches) -> Batches:
    for batch in batches:
        if BAD in batch.column("n").to_pylist():
            die(3)
        yield batch


def raises(bad: set[int], batches: Batches) -> Batches:
    for batch in batches:
        found = bad & set(batch.column("n").to_pylist())
        if found:
            raise ValueError(f"cannot bear {min(found)}")
        yield batch


@pytest.fixture
def few_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up sooner: what is shown does not depend on how often."""
    monkeypatch.setattr(giving_up, "Losses", partial(Losses, limit=3))


def await_failure(query: LocalQuery) -> Any:
    with pytest.raises(Exception) as caught:  # noqa: PT011  each test looks at it
        assert query.awaitTermination(WAIT_S), f"no end: {query.status}"
    assert not query.isActive
    assert query.exception() is caught.value
    query.stop()
    assert query.join()
    return caught.value


# -- a process that ends ---------------------------------------------------------------------------


@pytest.mark.usefixtures("few_losses")
@pytest.mark.parametrize("exchanged", [False, True])
def test_a_row_that_ends_its_process_ends_the_flow_with_an_error_that_names_it(
    exchanged: bool,
) -> None:
    flow = Flow()
    stream = source(flow)
    if exchanged:
        stream = stream.keyBy("key")
    stream.mapInArrow(ends_its_host, "n bigint, key bigint").name("fragile").memory()
    error = await_failure(start_local(flow, hosts=2, reinstate=False))
    assert isinstance(error, HostLostError)
    where = error.parameters
    assert where["stage"] == "fragile"
    assert where["node"].startswith("fragile[")
    assert where["status"] == 3
    assert where["losses"] == 4
    first, last = (int(word) for word in where["rows"].split() if word.isdigit())
    assert "of numbers[" in where["rows"]
    assert last - first < ROWS
    for part in ("'fragile'", where["node"], where["rows"], f"epoch {where['epoch']}", "status 3"):
        assert part in error.message


@pytest.mark.usefixtures("few_losses")
@pytest.mark.parametrize(
    ("options", "exchanged", "rows"),
    [
        ({"guarantee": "at-most-once"}, False, "of numbers["),
        ({"guarantee": "at-least-once"}, False, "of numbers["),
        ({"guarantee": "at-least-once"}, True, "rows from numbers["),
        ({"regime": Replicated()}, False, "of numbers["),
        ({"regime": Replicated()}, True, "rows from numbers["),
    ],
)
def test_the_error_names_stage_and_rows_whatever_the_guarantee_and_the_regime(
    options: RunOptions, exchanged: bool, rows: str
) -> None:
    flow = Flow()
    stream = source(flow)
    if exchanged:
        stream = stream.keyBy("key")
    function = partial(dies_of, set(range(ROWS)), [])
    stream.mapInArrow(function, "n bigint, key bigint").name("fragile").memory()
    error = await_failure(start_local(flow, hosts=2, reinstate=False, **options))
    assert isinstance(error, HostLostError)
    where = error.parameters
    assert (where["stage"], where["status"]) == ("fragile", 3)
    assert where["node"].startswith("fragile[")
    assert rows in where["rows"]
    assert where["rows"] in error.message


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
def test_rows_that_end_their_process_are_skipped_under_weaker_guarantees(guarantee: str) -> None:
    flow = Flow()
    stream = source(flow).mapInArrow(partial(dies_of, {BAD}, []), "n bigint, key bigint")
    checked = stream.name("fragile").onError("skip")
    kept, failed = checked.memory(name="kept"), checked.errors().memory(name="failed")
    start_local(flow, hosts=2, guarantee=guarantee).finish(WAIT_S)
    found = {row["n"] for row in kept.toPylist()}
    assert BAD not in found
    assert found < set(range(ROWS))
    if guarantee == "at-least-once":
        assert found == set(range(ROWS)) - {BAD}
        assert {n for *_, n in letters(failed.toPylist())} == {BAD}


@pytest.mark.parametrize("exchanged", [False, True])
def test_rows_that_end_their_process_are_skipped_and_stay_so_when_the_flow_starts_again(
    exchanged: bool, tmp_path: Path
) -> None:
    bad = {BAD, BAD + 1, ROWS - 5}
    calls: list[set[int]] = []

    def run(rows: int) -> tuple[LocalQuery, MemorySink, MemorySink]:
        flow = Flow("deadly")
        stream = source(flow, rows=rows)
        if exchanged:
            stream = stream.keyBy("key")
        stream = stream.mapInArrow(partial(dies_of, bad, calls), "n bigint, key bigint")
        checked = stream.name("fragile").onError("skip")
        sums = checked.groupBy("key").agg(F.sum("n").alias("total"))
        out, failed = sums.memory(name="sums"), checked.errors().memory(name="failed")
        keeping = {"checkpointLocation": tmp_path / "store", "checkpointInterval": "1 hour"}
        query = start_local(flow, hosts=2, **keeping)
        query.finish(WAIT_S)
        return query, out, failed

    query, out, failed = run(ROWS)
    how = "HostLostError: its process ended itself with exit status 3"
    assert letters(failed.toPylist()) == sorted(("fragile", how, n) for n in bad)
    assert {row["key"]: row["total"] for row in out.toPylist()} == totals(ROWS, bad)
    assert len(query.recoveries) <= len(bad) * 6
    assert {row["epoch"] for row in failed.toPylist()} <= set(failed.epochs())

    del calls[:]
    query, out, failed = run(2 * ROWS)
    assert not query.recoveries
    assert not failed.toPylist()
    assert {row["key"]: row["total"] for row in out.toPylist()} == totals(2 * ROWS, bad)


def test_rows_are_found_though_their_process_says_nothing_and_hosts_are_killed_meanwhile() -> None:
    bad = {BAD, BAD + 900}
    flow = Flow()
    stream = source(flow).mapInArrow(partial(crashes_of, bad), "n bigint, key bigint")
    checked = stream.name("fragile").onError("skip")
    kept, failed = checked.memory(name="kept"), checked.errors().memory(name="failed")
    query = start_local(flow, hosts=2, epochInterval="20 ms")
    for losses in (2, 5):
        wait_for(lambda known=losses: len(query.recoveries) >= known, query)
        killed(query, "fragile[1]")
    query.finish(WAIT_S)
    assert sorted(row["n"] for row in kept.toPylist()) == sorted(set(range(ROWS)) - bad)
    assert sorted(n for *_, n in letters(failed.toPylist())) == sorted(bad)


def crashes_of(bad: set[int], batches: Batches) -> Batches:
    """As a segmentation fault: there are no last words."""
    for batch in batches:
        if bad & set(batch.column("n").to_pylist()):
            process = local._here.process
            process.died, process.host.orderly = True, False
            raise local._Died
        yield batch


def test_a_row_is_not_skipped_before_that_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[SkippedRow] = []
    add = SkippedRows.add

    def unwilling(record: SkippedRows, row: SkippedRow) -> None:
        if len(refused) < 2:
            refused.append(row)
            raise OSError("no space left")
        add(record, row)

    monkeypatch.setattr(SkippedRows, "add", unwilling)
    calls: list[set[int]] = []
    flow = Flow()
    stream = source(flow).mapInArrow(partial(dies_of, {BAD}, calls), "n bigint, key bigint")
    checked = stream.name("fragile").onError("skip")
    kept, failed = checked.memory(name="kept"), checked.errors().memory(name="failed")
    query = start_local(flow, hosts=2)
    query.finish(WAIT_S)
    assert sorted(row["n"] for row in kept.toPylist()) == [n for n in range(ROWS) if n != BAD]
    assert [n for *_, n in letters(failed.toPylist())] == [BAD]
    assert calls.count({BAD}) == 4


@pytest.mark.usefixtures("few_losses")
def test_a_stage_that_survives_none_of_its_rows_ends_the_flow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadly_rows, "ROWS_MAX", 2)
    calls: list[set[int]] = []
    flow = Flow()
    stream = source(flow).mapInArrow(
        partial(dies_of, set(range(ROWS)), calls), "n bigint, key bigint"
    )
    stream.name("fragile").onError("skip").memory()
    error = await_failure(start_local(flow, hosts=2))
    assert isinstance(error, HostLostError)
    assert "passed over" in error.message


def dies_of(bad: set[int], calls: list[set[int]], batches: Batches) -> Batches:
    for batch in batches:
        calls.append(set(batch.column("n").to_pylist()))
        if calls[-1] & bad:
            die(3)
        yield batch


def totals(rows: int, bad: set[int]) -> dict[int, int]:
    return {key: sum(n for n in range(rows) if n % 7 == key and n not in bad) for key in range(7)}


def test_many_kills_are_survived_as_long_as_there_is_progress_between_them() -> None:
    flow = Flow()
    out = source(flow, rows=1 << 40, rate=2_000).keyBy("key").memory()
    query = start_local(flow, hosts=2, reinstate=False, epochInterval="20 ms")
    reached = 0
    for _ in range(LOSSES_MAX + 3):
        wait_for(lambda least=reached: max(out.epochs(), default=0) > least, query)
        reached = max(out.epochs())
        known = len(query.recoveries)
        wait_for(partial(killed, query, "numbers[0]"), query)
        wait_for(lambda before=known: len(query.recoveries) > before, query)
    wait_for(lambda: max(out.epochs()) > reached, query)
    query.stop()
    assert query.exception() is None


def killed(query: LocalQuery, node: str) -> bool:
    """Kill a node's host; False: it is not up yet."""
    try:
        query.kill(node)
    except TransientError:
        return False
    return True


def wait_for(condition: Callable[[], bool], query: LocalQuery) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.status
        time.sleep(0.005)


def test_a_function_that_calls_sys_exit_is_one_that_raises() -> None:
    def leaves(batches: Batches) -> Batches:
        raise SystemExit(4)
        yield from batches

    flow = Flow()
    source(flow).mapInArrow(leaves, "n bigint").name("leaves").memory()
    error = await_failure(start_local(flow))
    assert isinstance(error, FunctionError)
    assert error.parameters["stage"] == "leaves"
    assert "sys.exit(4)" in error.message


# -- a host that is lost while the flow starts -----------------------------------------------------


class Dying:
    """Lets hosts die at a moment of their lives, the first few that come to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, moment: str, times: int) -> None:
        self.left = times
        self._lock = threading.Lock()
        original = getattr(local._LocalHost, moment)
        dying = self

        def wrapped(host: Any, *arguments: Any) -> Any:
            if dying.turn():
                host.died, host.host.orderly = True, False
                raise local._Died
            return original(host, *arguments)

        monkeypatch.setattr(local._LocalHost, moment, wrapped)

    def turn(self) -> bool:
        """Whether it is somebody's turn to die."""
        with self._lock:
            self.left -= 1
            return self.left >= 0


@pytest.mark.parametrize("standby", [0, 1])
@pytest.mark.parametrize("moment", ["run", "_assign", "_recover"])
def test_a_host_lost_while_the_flow_starts_is_started_again(
    moment: str, standby: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = Dying(monkeypatch, moment, times=2)
    flow = Flow()
    out = source(flow).groupBy("key").agg(F.count("*").alias("rows")).memory()
    query = start_local(flow, hosts=2, standby=standby)
    query.finish(WAIT_S)
    assert dying.left < 0
    last = {row["key"]: row["rows"] for row in out.toPylist()}
    assert last == Counter(n % 7 for n in range(ROWS))


@pytest.mark.usefixtures("few_losses")
@pytest.mark.parametrize("moment", ["run", "_assign", "_recover"])
def test_start_raises_when_hosts_are_lost_again_and_again(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Dying(monkeypatch, moment, times=1 << 30)
    flow = Flow()
    source(flow).memory()
    with pytest.raises(HostLostError, match=r"was lost 4 times"):
        start_local(flow, hosts=2)


def test_an_error_of_the_controllers_own_ends_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow()
    out = source(flow, rows=1 << 40).memory()
    query = start_local(flow, hosts=2)
    wait_for(lambda: bool(out.epochs()), query)

    def broken(_: Recovery) -> Any:
        raise InvariantError("the low-watermark went back")

    monkeypatch.setattr(Recovery, "lows", broken)
    assert "went back" in await_failure(query).message


# -- functions that raise --------------------------------------------------------------------------


def letters(rows: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return sorted((row["stage"], row["error"], json.loads(row["row"])["n"]) for row in rows)


def test_rows_that_a_function_raises_for_are_skipped_and_the_others_go_on() -> None:
    bad = {0, 17, 18, 1_999, ROWS - 1}
    flow = Flow()
    checked = source(flow).mapInArrow(partial(raises, bad), "n bigint, key bigint")
    checked = checked.name("checked").onError("skip")
    kept, failed = checked.memory(name="kept"), checked.errors().memory(name="failed")
    query = run_local(flow)
    assert sorted(row["n"] for row in kept.toPylist()) == sorted(set(range(ROWS)) - bad)
    assert letters(failed.toPylist()) == sorted(
        ("checked", f"ValueError: cannot bear {n}", n) for n in bad
    )
    assert {row["epoch"] for row in failed.toPylist()} <= set(failed.epochs())
    assert query.lastProgress is not None
    assert json.loads(failed.toPylist()[0]["row"]).keys() == {"n", "key"}


@pytest.mark.parametrize("kind", ["filter", "withColumn", "sql", "vertex"])
def test_every_kind_of_stage_without_state_can_skip(kind: str) -> None:
    class Checks(Vertex):
        stateless = True

        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.sendBy(0, batch, time)  # is taken back if the call raises after it
            if BAD in batch.column("n").to_pylist():
                raise ValueError("bad")

    def judged(batch: pa.RecordBatch) -> pa.Array:
        if BAD in batch.column("n").to_pylist():
            raise ValueError("bad")
        return pc.greater_equal(batch.column("n"), 0)

    flow = Flow()
    stream = source(flow)
    if kind == "filter":
        stream = stream.filter(judged)
    elif kind == "withColumn":
        stream = stream.withColumn("fine", judged, pa.bool_())
    elif kind == "sql":
        stream = stream.withColumn("x", f"cast(n / (n - {BAD}) AS bigint)")
    else:
        stream = stream.process(Checks, stream.schema)
    stream = stream.name("checked").onError("skip")
    kept, failed = stream.memory(name="kept"), stream.errors().memory(name="failed")
    run_local(flow)
    assert sorted(row["n"] for row in kept.toPylist()) == [n for n in range(ROWS) if n != BAD]
    assert [json.loads(row["row"])["n"] for row in failed.toPylist()] == [BAD]


@pytest.mark.parametrize("exchanged", [False, True])
def test_skipped_rows_are_delivered_exactly_once_through_losses(exchanged: bool) -> None:
    bad = set(range(0, ROWS, 13))
    flow = Flow()
    stream = source(flow, rate=3_000)
    if exchanged:
        stream = stream.keyBy("key")
    checked = stream.mapInArrow(partial(raises, bad), "n bigint, key bigint")
    checked = checked.name("checked").onError("skip")
    kept = checked.groupBy("key").agg(F.count("*").alias("rows")).memory(name="kept")
    failed = checked.errors().memory(name="failed")
    hold_input(flow)
    query = start_local(flow, hosts=3, checkpointInterval="100 ms", epochInterval="20 ms")
    for number, node in enumerate(("checked[0]", "checked[1]", "numbers[0]"), 1):
        await_epochs(query, 4)
        wait_for(partial(killed, query, node), query)
        await_recovery(query, number)
    query.finish(WAIT_S)
    query.stop()
    assert sorted(n for *_, n in letters(failed.toPylist())) == sorted(bad)
    last = {row["key"]: row["rows"] for row in kept.toPylist()}
    assert last == Counter(n % 7 for n in range(ROWS) if n not in bad)


def test_the_flow_can_skip_wherever_a_stage_can() -> None:
    flow = Flow()
    stream = source(flow).mapInArrow(partial(raises, {BAD}), "n bigint, key bigint").keyBy("key")
    out = stream.groupBy("key").agg(F.count("*").alias("rows")).memory()
    run_local(flow, onError="skip")
    last = {row["key"]: row["rows"] for row in out.toPylist()}
    assert last == Counter(n % 7 for n in range(ROWS) if n != BAD)


@pytest.mark.parametrize("retries", [False, True])
def test_a_stage_that_restarts_survives_what_does_not_last(
    retries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark may start tasks again that have died, but not those that have ended with an error.
    monkeypatch.setattr(local._LocalLauncher, "retries", retries)
    left = iter(range(3))

    def unlucky(batches: Batches) -> Batches:
        for batch in batches:
            if BAD in batch.column("n").to_pylist() and next(left, None) is not None:
                raise OSError("try again")
            yield batch

    flow = Flow()
    stream = source(flow).mapInArrow(unlucky, "n bigint, key bigint").name("unlucky")
    out = stream.onError("restart").memory()
    query = start_local(flow, hosts=2)
    query.finish(WAIT_S)
    assert sorted(row["n"] for row in out.toPylist()) == list(range(ROWS))
    assert len(query.recoveries) == 3
    assert "try again" in query.recoveries[0]["reason"]


@pytest.mark.usefixtures("few_losses")
def test_a_stage_that_restarts_in_vain_ends_the_flow_with_its_error() -> None:
    flow = Flow()
    stream = source(flow).mapInArrow(partial(raises, {BAD}), "n bigint, key bigint")
    stream.name("fragile").memory()
    error = await_failure(start_local(flow, hosts=2, onError="restart"))
    assert isinstance(error, FunctionError)
    assert error.parameters["stage"] == "fragile"
    assert f"cannot bear {BAD}" in error.message
    assert "3 restarts" in error.message


def test_what_cannot_skip_or_restart_is_refused_with_the_reason() -> None:
    class Keeps(Vertex):
        pass

    def asks(batches: Batches, ctx: Any) -> Batches:
        yield from batches

    flow = Flow()
    stream = source(flow)
    with pytest.raises(SettingsError, match="cannot skip: it is a source"):
        stream.onError("skip")
    with pytest.raises(SettingsError, match="it keeps state"):
        stream.process(Keeps, stream.schema).onError("skip")
    with pytest.raises(SettingsError, match="it keeps state"):
        stream.groupBy("key").count().onError("skip")
    with pytest.raises(SettingsError, match="asks for the time"):
        stream.mapInArrow(asks, stream.schema).onError("skip")
    with pytest.raises(SettingsError, match="calls no function"):
        stream.keyBy("key").onError("skip")
    with pytest.raises(SettingsError, match="the driver's own process"):
        flow.memory(stream.schema).onError("restart")
    with pytest.raises(SettingsError, match="'stop' or 'restart' or 'skip'"):
        stream.onError("ignore")
    with pytest.raises(SettingsError, match=r'call onError\("skip"\) first'):
        stream.errors()
    with pytest.raises(SettingsError, match="onError is 'stop' or"):
        start_local(flow, onError="never")


def test_replicated_stages_can_skip() -> None:
    flow = Flow()
    regime = Replicated()
    stream = source(flow).mapInArrow(partial(raises, {BAD}), "n bigint, key bigint")
    checked = stream.name("checked").onError("skip")
    kept, failed = checked.memory(name="kept"), checked.errors().memory(name="failed")
    run_local(flow, regime=regime)
    assert sorted(row["n"] for row in kept.toPylist()) == [n for n in range(ROWS) if n != BAD]
    assert [n for *_, n in letters(failed.toPylist())] == [BAD]


# -- several hosts at once -------------------------------------------------------------------------


@pytest.mark.parametrize("together", [2, 3])
def test_totals_are_exact_when_hosts_are_killed_together_again_and_again(together: int) -> None:
    rows, rounds = 12_000, 3
    flow = Flow()
    shared = source(flow, rows=rows, rate=8_000).keyBy("key", shards=3).name("shared")
    counts = shared.groupBy("key").agg(F.count("*").alias("rows")).name("counts")
    halves = shared.select("n", "key", "n % 2 AS half").groupBy("half")
    sums = halves.agg(F.sum("n").alias("total")).name("sums")
    counted, summed = counts.memory(name="counted"), sums.memory(name="summed")
    hold_input(flow)
    query = start_local(flow, hosts=4, checkpointInterval="100 ms", epochInterval="20 ms")
    try:
        for round_ in range(rounds):
            await_epochs(query, 5)
            up = [one["host"] for one in query.hosts if one["address"]]
            for host in (up[round_ % len(up) :] + up)[:together]:
                with suppress(TransientError):  # it was replaced in the meantime
                    query._controller.links.kill(host)
        wait_for(lambda: len(query.recoveries) >= rounds, query)
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert {row["key"]: row["rows"] for row in counted.toPylist()} == Counter(
        n % 7 for n in range(rows)
    )
    assert {row["half"]: row["total"] for row in summed.toPylist()} == {
        half: sum(range(half, rows, 2)) for half in (0, 1)
    }
