"""Subscriptions, foreachBatch and the console: what reaches the driver, and who waits for whom."""

from __future__ import annotations

import pickle
import threading
import time

import pyarrow as pa
import pytest

from penstock.connectors.console import Console
from penstock.connectors.foreach_batch import ForeachBatch
from penstock.connectors.subscribe import Subscription
from penstock.errors import InvariantError, SettingsError
from penstock.testing.harness import Harness

SCHEMA = pa.schema({"x": pa.int64()})


def table(*values: int) -> pa.Table:
    return pa.table({"x": list(values)}, schema=SCHEMA)


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": list(values)}, schema=SCHEMA)


def test_subscription_gives_epochs_when_complete_and_ends() -> None:
    subscription = Subscription()
    harness = Harness(subscription)
    before = time.time_ns()
    harness.recv(batch(1), 0)
    harness.recv(batch(2), 2)
    harness.complete(0)
    harness.complete(2)
    harness.vertex.close()
    assert [(epoch, rows["x"].to_pylist()) for epoch, rows in subscription] == [(0, [1]), (2, [2])]
    assert before <= subscription.received_ns[0] <= subscription.received_ns[2] <= time.time_ns()
    assert subscription.get(0.01) is None
    assert subscription.completeEpoch == 2


def test_subscription_can_include_empty_epochs_in_order() -> None:
    subscription = Subscription(includeEmpty=True)
    subscription.output_schemas([SCHEMA])
    subscription.resume(5)
    subscription.publish(7, table(1))
    subscription.advance(7)
    subscription.advance(9)
    subscription.end()
    assert [(epoch, rows.num_rows) for epoch, rows in subscription] == [
        (5, 0),
        (6, 0),
        (7, 1),
        (8, 0),
        (9, 0),
    ]


def test_subscription_drops_an_epoch_that_was_handed_over() -> None:
    subscription = Subscription()
    for _ in range(2):
        subscription.publish(0, table(1))
        subscription.advance(0)
    subscription.end()
    assert len(list(subscription)) == 1


def test_subscription_raises_what_made_the_flow_fail_after_the_rows() -> None:
    subscription = Subscription()
    subscription.publish(0, table(1))
    subscription.fail(ValueError("broken"))
    assert next(subscription)[0] == 0
    with pytest.raises(ValueError, match="broken"):
        next(subscription)


def test_subscription_times_out() -> None:
    with pytest.raises(TimeoutError, match=r"no epoch within 0\.01 s"):
        Subscription().get(0.01)


@pytest.mark.parametrize("bound", [{"capacity": 2}, {"bytes_max": 16}])
def test_flow_waits_for_a_consumer_that_does_not_read(bound: dict[str, int]) -> None:
    subscription = Subscription(**bound)  # type: ignore[arg-type]
    done = threading.Event()

    def publish() -> None:
        for epoch in range(5):
            subscription.publish(epoch, table(epoch))
        done.set()

    threading.Thread(target=publish, daemon=True).start()
    assert not done.wait(0.1)
    assert len(subscription._queue) == 2
    assert [subscription.get(5)[0] for _ in range(5)] == [0, 1, 2, 3, 4]  # type: ignore[index]
    assert done.wait(5)


@pytest.mark.parametrize("how", ["stopping", "end", "cancel", "fail"])
def test_nobody_hangs_when_the_flow_stops(how: str) -> None:
    subscription = Subscription(capacity=1)
    done = threading.Event()

    def publish() -> None:
        for epoch in range(4):
            subscription.publish(epoch, table(epoch))
        done.set()

    threading.Thread(target=publish, daemon=True).start()
    assert not done.wait(0.05)
    if how == "fail":
        subscription.fail(ValueError("broken"))
    else:
        getattr(subscription, how)()
    assert done.wait(5)
    assert len(subscription._queue) == (0 if how == "cancel" else 4)


def test_subscription_serves_a_second_run() -> None:
    subscription = Subscription()
    for _ in range(2):
        harness = Harness(subscription)
        harness.recv(batch(1), 0)
        harness.complete(0)
        harness.vertex.close()
        assert len(list(subscription)) == 1


def test_foreach_batch_is_called_once_per_epoch_with_rows() -> None:
    calls: list[tuple[int, list[int]]] = []
    harness = Harness(
        ForeachBatch(lambda rows, epoch: calls.append((epoch, rows["x"].to_pylist())))
    )
    harness.recv(batch(1), 0)
    harness.recv(batch(2), 0)
    harness.recv(batch(3), 2)
    assert calls == []
    for epoch in range(4):
        harness.complete(epoch)
    assert calls == [(0, [1, 2]), (2, [3])]


def test_foreach_batch_lets_errors_out_and_leaves_its_function_at_home() -> None:
    lock = threading.Lock()

    def fails(rows: pa.Table, epoch: int) -> None:
        with lock:
            raise ValueError("no")

    sink = ForeachBatch(fails)
    with pytest.raises(ValueError, match="no"):
        sink.publish(0, table(1))
    assert sink.describe().endswith("fails")
    with pytest.raises(InvariantError, match="outside the driver"):
        pickle.loads(pickle.dumps(sink)).publish(0, table(1))
    with pytest.raises(SettingsError, match="expected a function"):
        ForeachBatch("x")  # type: ignore[arg-type]


def test_console_prints_the_first_rows(capsys: pytest.CaptureFixture[str]) -> None:
    Console(2).publish(4, pa.table({"name": ["[red]a", None, "c"]}))
    printed = capsys.readouterr().out
    assert "epoch 4: 3 rows, the first 2" in printed
    assert "[red]a" in printed
    assert "null" in printed
    assert "c" not in printed.split("null")[1]
    with pytest.raises(SettingsError, match="rows must be"):
        Console(-1)
