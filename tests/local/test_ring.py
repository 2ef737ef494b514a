"""Hosts that watch each other: who takes over from whom, with nothing lost or doubled."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.core.control.host_reports import NextFellSilent
from penstock.engine.driver.process_probe import is_running, is_there
from penstock.errors import TransientError
from penstock.testing.held_input import hold_input
from penstock.testing.kills import await_recovery
from penstock.testing.local import LocalQuery, _LocalHost, start_local
from penstock.testing.processes import wait_until

ROWS = 20_000
LONGER = 50_000
RATE = 10_000
KEYS = 20
WAIT_S = 60.0
QUICK = {"pingInterval": "50 ms", "pingTimeout": "400 ms"}


def numbers(offset: int, n: int) -> pa.RecordBatch:
    ids = range(offset, offset + n)
    return pa.record_batch({"n": pa.array(ids), "key": pa.array([i % KEYS for i in ids])})


def summed(rows: int = ROWS) -> tuple[Flow, Any]:
    flow = Flow()
    made = flow.generate(numbers, rate=RATE, rows=rows, shards=2, name="numbers")
    sums = made.groupBy("key").agg(F.count("*").alias("rows"), F.sum("n").alias("total"))
    return flow, sums.name("sums").memory()


def check(out: Any, rows: int = ROWS) -> None:
    """The last row of every key has everything, once."""
    last = {row["key"]: (row["rows"], row["total"]) for row in out.toPylist()}
    wanted = {key: range(key, rows, KEYS) for key in range(KEYS)}
    assert last == {key: (len(ids), sum(ids)) for key, ids in wanted.items()}


def started(flow: Flow, hosts: int, **options: Any) -> LocalQuery:
    hold_input(flow)
    return start_local(flow, hosts, **{"checkpointInterval": "200 ms", **options})


def places(query: LocalQuery) -> dict[str, int]:
    return {node["name"]: node["host"] for node in query.nodes()}


def await_loss(query: LocalQuery) -> None:
    """Wait until a host that stands still is given up.

    How long that takes depends on how late answers came before: on a busy machine, longer.
    """
    wait_until(lambda: query.recoveries, WAIT_S, "the loss")


def await_recovery_of(query: LocalQuery, host: int) -> None:
    """Wait until this host is given up and nothing recovers any more.

    On a busy machine another one may be given up before it.
    """
    wait_until(lambda: any(entry["host"] == host for entry in query.recoveries), WAIT_S, "the loss")
    await_recovery(query)


def refused(query: LocalQuery) -> set[str]:
    """What was refused of hosts that had been given up."""
    return {what for entry in query.recoveries for what in entry["refused"]}


def to_the_end(query: LocalQuery) -> None:
    try:
        query.finish(WAIT_S)
    finally:
        query.stop()


@pytest.mark.parametrize("takeover", ["next", "least-loaded", "split"])
def test_those_who_live_take_over_at_once(takeover: str) -> None:
    flow, out = summed()
    query = started(flow, 3, takeover=takeover, reinstate=False)
    before = places(query)
    victim = before["sums[0]"]
    lost = [name for name, host in before.items() if host == victim]
    query.kill("sums[0]")
    entry = await_recovery(query)
    after = places(query)
    assert entry["host"] == victim
    assert sorted(entry["lost"]) == sorted(lost)
    takers = {after[name] for name in lost}
    others = {host for host in before.values() if host not in (0, victim)}
    assert takers <= others  # nobody waited for a new process
    if takeover == "next":
        assert takers == {victim % 3 + 1}
    if takeover == "split":
        assert len(takers) == min(len(lost), 2)
    assert {after[name] for name in before if name not in lost} == {
        before[name] for name in before if name not in lost
    }
    to_the_end(query)
    check(out)


def test_a_spare_is_preferred() -> None:
    flow, out = summed()
    query = started(flow, 2, standby=1)
    query.kill("sums[0]")
    await_recovery(query)
    assert places(query)["sums[0]"] == 3
    to_the_end(query)
    check(out)


def killed(query: LocalQuery, node: str) -> bool:
    """Kill a node's host, once it is up."""
    try:
        query.kill(node)
    except TransientError:
        return False
    return True


def test_several_deaths_in_a_row_down_to_one_host_and_none() -> None:
    flow, out = summed()
    query = started(flow, 3)
    for number, victim in enumerate(("sums[0]", "sums[1]", "numbers[0]", "sums[2]"), 1):
        wait_until(lambda name=victim: killed(query, name), WAIT_S, "a host to kill")
        wait_until(lambda n=number: len(query.recoveries) >= n, WAIT_S, "the loss")
    await_recovery(query, 4)
    to_the_end(query)
    check(out)


def test_one_host_alone_waits_for_a_new_process() -> None:
    flow, out = summed()
    query = started(flow, 1)
    query.kill("sums[0]")
    await_recovery(query)
    assert set(places(query).values()) <= {0, 2}
    to_the_end(query)
    check(out)


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_a_host_that_stands_still_is_noticed_by_the_one_before_it(hosts: int) -> None:
    flow, out = summed()
    query = started(flow, hosts, **QUICK)
    wait_until(out.toPylist, WAIT_S, "rows")
    [frozen] = query.freeze("sums[0]", WAIT_S)
    entry = await_recovery(query)
    query.unfreeze("sums[0]")
    assert entry["host"] == frozen["host"]
    watcher = "the driver" if hosts == 1 else "host"
    assert "silent for" in entry["reason"]
    assert f"as {watcher}" in entry["reason"]
    to_the_end(query)
    check(out)


def test_nobody_is_taken_for_dead_who_works() -> None:
    flow, out = summed()
    query = started(flow, 3, pingInterval="50 ms", pingTimeout="1 second")
    to_the_end(query)
    assert query.recoveries == []
    check(out)


def test_old_news_and_reports_of_hosts_that_the_driver_hears_count_for_nothing() -> None:
    flow, out = summed()
    query = started(flow, 3)
    controller = query._controller

    def report(host: int) -> None:
        report = NextFellSilent(host, 5_000, {})
        controller.events.ask(lambda: controller.members.silent(1, report), WAIT_S)

    for host in (1, 2, 3):  # everybody at once
        report(host)
    assert query.recoveries == []
    lost = query.kill("sums[0]")["host"]
    await_recovery(query)
    report(lost)
    assert len(query.recoveries) == 1
    to_the_end(query)
    check(out)


def test_a_sleeping_process_is_told_from_one_that_works() -> None:
    assert is_running(os.getpid())  # this thread
    assert not is_running(2**22 + 1)
    assert not is_there(2**22 + 1)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert is_there(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: not is_there(child.pid), WAIT_S, "the stop")
        os.kill(child.pid, signal.SIGCONT)
        wait_until(lambda: is_there(child.pid), WAIT_S, "its going on")
    finally:
        child.kill()
        child.wait(WAIT_S)
    assert not is_there(child.pid)


def test_rows_are_neither_lost_nor_doubled_without_state() -> None:
    flow = Flow()
    made = flow.generate(numbers, rate=RATE, rows=ROWS, shards=2, name="numbers")
    out = made.keyBy("n").select("n").name("kept").memory()
    query = started(flow, 2, takeover="split")
    for number, victim in enumerate(("kept[0]", "kept[1]"), 1):
        query.kill(victim)
        await_recovery(query, number)
    to_the_end(query)
    assert Counter(row["n"] for row in out.toPylist()) == Counter(range(ROWS))


def at_home(query: LocalQuery) -> bool:
    return all(node["host"] == node["home"] for node in query.nodes())


def await_home(query: LocalQuery, moves: int = 1) -> None:
    def home() -> bool:
        found = query.moves
        return len(found) >= moves and found[-1]["recovered_us"] is not None and at_home(query)

    wait_until(home, WAIT_S, "the way home")


def test_nodes_go_home_under_load_when_a_new_process_is_there() -> None:
    flow, out = summed(LONGER)
    query = started(flow, 3)
    before = places(query)
    lost = query.kill("sums[0]")["host"]
    entry = await_recovery(query)
    await_home(query)
    [move] = query.moves
    after = places(query)
    assert sorted(move["lost"]) == sorted(entry["lost"])
    assert move["moved"]
    assert "go home" in move["reason"]
    assert {after[name] for name in entry["lost"]} == {4}
    assert {name: host for name, host in after.items() if host != 4} == {
        name: host for name, host in before.items() if host != lost
    }
    assert len(query.recoveries) == 1  # a move is no failure
    to_the_end(query)
    check(out, LONGER)


@pytest.mark.parametrize("victim", ["home", "taker"])
def test_a_death_on_the_way_home_is_just_one_more_loss(
    victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, out = summed(LONGER)
    query = started(flow, 3, takeover="next")
    recovery = query._controller.recovery
    assert recovery is not None
    move = type(recovery).move
    done: list[int] = []

    def and_die(self: Any, moved: Any, reason: str) -> None:
        taker = next(iter({self.orders.placement[node] for node in moved}))
        home = next(iter(set(moved.values())))
        move(self, moved, reason)
        if not done:
            done.append(home if victim == "home" else taker)
            query._controller.links.kill(done[0])

    monkeypatch.setattr(type(recovery), "move", and_die)
    query.kill("sums[0]")
    await_recovery(query)
    wait_until(lambda: done, WAIT_S, "the way home")
    await_recovery(query, 2)
    assert query.recoveries[1]["host"] == done[0]
    to_the_end(query)
    check(out, LONGER)


def test_a_home_that_dies_again_and_again_has_to_be_up_for_longer() -> None:
    flow, _ = summed(100 * ROWS)
    query = started(flow, 2)
    waits = []
    for number in (1, 2):
        host = query.kill("sums[0]")["host"]
        await_recovery(query, number)
        began = time.monotonic()
        await_home(query, number)
        waits.append(time.monotonic() - began)
        assert places(query)["sums[0]"] != host
    assert waits[1] > 1.9
    query.stop()
    assert query.exception() is None


def test_where_a_move_could_lose_rows_nodes_stay_where_they_are() -> None:
    flow = Flow()
    made = flow.generate(numbers, rate=RATE, rows=2 * ROWS, shards=2, name="numbers")
    out = made.keyBy("n").select("n").name("kept").memory()
    query = started(flow, 2, guarantee="at-most-once")
    query.kill("kept[0]")
    await_recovery(query)
    time.sleep(2.0)
    assert query.moves == []
    to_the_end(query)
    found = Counter(row["n"] for row in out.toPylist())
    assert max(found.values()) == 1


def test_whoever_switches_it_off_keeps_nodes_where_they_are() -> None:
    flow, out = summed()
    query = started(flow, 2, reinstate=False)
    query.kill("sums[0]")
    await_recovery(query)
    to_the_end(query)
    assert not at_home(query)
    assert query.moves == []
    check(out)


def test_a_host_that_wakes_up_is_refused_and_ends() -> None:
    flow, out = summed()
    query = started(flow, 3, **QUICK)
    wait_until(out.toPylist, WAIT_S, "rows")
    jobs = dict(query._jobs)  # a fresh host gets the number of the one that is lost
    [frozen] = query.freeze("sums[0]", WAIT_S)
    await_recovery_of(query, frozen["host"])
    assert query.unfreeze("sums[0]") == [frozen]
    job = jobs[frozen["host"]]
    wait_until(job.ended.is_set, WAIT_S, "the end of the host that woke up")
    wait_until(lambda: refused(query), WAIT_S, "the refusal")
    assert refused(query) <= {"messages", "connections", "writes"}
    to_the_end(query)
    check(out)


def test_what_a_host_writes_that_does_not_know_it_was_given_up_is_refused_by_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_LocalHost, "_given_up", lambda self, peer: None)
    flow, out = summed(LONGER)
    query = started(flow, 1, **QUICK)
    wait_until(out.toPylist, WAIT_S, "rows")
    zombie = query._jobs[places(query)["sums[0]"]].process
    assert zombie is not None
    zombie.freeze(WAIT_S)
    await_recovery_of(query, zombie.host.number)
    zombie.unfreeze()
    # It stops at the first refusal, and need not connect to anybody again.
    wait_until(lambda: zombie.host.transport.refusals.writes, WAIT_S, "a refused write")
    to_the_end(query)
    check(out, LONGER)


def test_who_speaks_again_at_once_was_only_slow_and_gets_more_time() -> None:
    flow, out = summed()
    query = started(flow, 2, **QUICK)
    wait_until(out.toPylist, WAIT_S, "rows")
    query.freeze("sums[0]", WAIT_S)
    await_loss(query)
    query.unfreeze("sums[0]")
    await_recovery(query)
    wait_until(lambda: query.recoveries[0]["refused"], WAIT_S, "the refusal")
    assert query._controller.members.machine.suspicion.timeout_ms == 800
    to_the_end(query)
    check(out)


def test_a_host_that_was_given_up_ends_with_its_flow() -> None:
    """Nobody is left to tell it; its threads would call their peers for ever."""
    flow, out = summed()
    query = started(flow, 2, **QUICK)
    wait_until(out.toPylist, WAIT_S, "rows")
    query.freeze("sums[0]", 10 * WAIT_S)
    await_recovery(query)
    to_the_end(query)
    assert query.join(WAIT_S)
    check(out)


def test_what_a_host_was_told_before_it_froze_it_does_not_do_when_it_wakes_up() -> None:
    flow, out = summed(LONGER)
    query = started(flow, 2, **QUICK)
    wait_until(out.toPylist, WAIT_S, "rows")
    taker = next(iter(set(places(query).values()) - {0, query.kill("numbers[1]")["host"]}))
    frozen = query._jobs[taker].process
    assert frozen is not None
    frozen.freeze(WAIT_S)
    await_recovery(query, 2)
    frozen.unfreeze()
    time.sleep(1.0)
    query.kill("numbers[1]")
    await_recovery(query, 3)
    to_the_end(query)
    check(out, LONGER)
