"""When probes say that a flow has recovered, and when an epoch is seen to be published."""

import os
import threading
import time
from pathlib import Path

import pytest

from penstock.bench.probe import STEADY, Probe
from penstock.bench.published import Published
from penstock.connectors.subscribe import Subscription
from penstock.errors import HostLostError, TransientError
from penstock.testing.processes import wait_until

MS = 1_000_000


def probe_with(latencies_ms: list[float | None]) -> Probe:
    """A probe that was sent every 10 ms from 0 on and took that long; None: it never came."""
    probe = Probe(lambda number: None, Subscription(), lambda rows: [])
    for number, latency in enumerate(latencies_ms):
        probe._sent_ns.append(number * 10 * MS)
        if latency is not None:
            probe._came_ns[number] = int((number * 10 + latency) * MS)
    return probe


def test_recovered_when_several_in_a_row_are_quick_again() -> None:
    # Signal at 25 ms: numbers 0 to 2 were sent before it; 3 to 6 waited, 7 is a lucky one.
    quick = [5.0] * (STEADY + 2)
    probe = probe_with([5, 5, 5, 300, 290, 280, 270, 8, 200, *quick])
    took = probe.recovered_s(25 * MS, limit_ms=10, timeout_s=1)
    assert took == pytest.approx((90 + 5 - 25) / 1000)


def test_not_recovered_while_probes_are_missing() -> None:
    probe = probe_with([5, 5, None, 5, 5, 5, 5, 5, 5])
    assert probe.recovered_s(15 * MS, limit_ms=10, timeout_s=0.05) is None
    assert probe.missing == 1


def test_what_made_the_flow_fail_is_raised_instead_of_waiting() -> None:
    out = Subscription()
    probe = Probe(lambda number: None, out, lambda rows: [])
    probe.start()
    out.fail(HostLostError("host 2 is gone"))
    with pytest.raises(HostLostError, match="host 2"):
        probe.recovered_s(0, limit_ms=10, timeout_s=10)
    probe.stop()


def test_where_few_probes_are_sent_in_the_time_more_are_waited_for() -> None:
    probe = probe_with([5, 5, 5])

    def send_later() -> None:
        time.sleep(0.05)
        for number in range(3, 7):
            probe._sent_ns.append(0)
            probe._came_ns[number] = number * MS

    sender = threading.Thread(target=send_later)
    sender.start()
    assert probe.normal_ms(0.0, timeout_s=30, at_least=3)[:3] == [3, 4, 5]
    sender.join()


def test_probes_that_are_not_sent_are_not_waited_for_without_an_end() -> None:
    with pytest.raises(TransientError, match="do not come through"):
        probe_with([5, 5, 5]).normal_ms(0.0, timeout_s=0.01)


def test_an_epoch_is_seen_when_its_folder_gets_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with Published(folder) as published:
        (folder / "_staging" / "epoch=7").mkdir(parents=True)
        time.sleep(0.05)
        assert published.seen_ns == {}
        before_ns = time.time_ns()
        os.rename(folder / "_staging" / "epoch=7", folder / "epoch=7")
        wait_until(lambda: published.seen_ns, 5, "the epoch")
    assert list(published.seen_ns) == [7]
    assert before_ns <= published.seen_ns[7] <= time.time_ns()


def test_a_folder_that_cannot_be_watched_is_said_to_be(tmp_path: Path) -> None:
    published = Published(tmp_path / "out")
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OSError, match="File exists"):
        published.__enter__()
