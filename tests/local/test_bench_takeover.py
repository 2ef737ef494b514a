"""The flow of ``penstock chaos --takeover``, in threads: what its sink holds after kills."""

import time

import pytest

from penstock.bench.takeover_flow import REPLICAS, TakeoverFlow
from penstock.core.delivery.guarantees import Guarantee
from penstock.testing.kills import await_epochs, await_recovery
from penstock.testing.local import start_local

WAIT_S = 60.0


def run(flow: TakeoverFlow, kills: int, guarantee: Guarantee) -> None:
    query = start_local(
        flow.flow,
        REPLICAS + 1,
        parallelism=REPLICAS,
        epochInterval="20 ms",
        standby="active",
        guarantee=guarantee.value,
    )
    try:
        flow.fill(WAIT_S)
        flow.load()
        for number in range(kills):
            await_epochs(query, 10)
            query.kill(f"states[{number % REPLICAS}]")
            since_ns = time.perf_counter_ns()
            await_recovery(query, number + 1)
            if guarantee is Guarantee.EXACTLY_ONCE:
                assert flow.served_s(number % REPLICAS, since_ns, WAIT_S) > 0
        flow.close()
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    flow.join(5)


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_what_kills_do_to_rows_under_each_guarantee(guarantee: Guarantee) -> None:
    flow = TakeoverFlow(state_bytes=300_000, rate=3_000, seed=1, fresh=True)
    run(flow, 2, guarantee)
    served = flow.check()
    assert not (guarantee.loses_nothing and served.lost)
    assert not (guarantee.doubles_nothing and served.duplicated)


def test_states_go_on_where_they_were() -> None:
    flow = TakeoverFlow(state_bytes=300_000, rate=3_000, seed=2)
    run(flow, 3, Guarantee.EXACTLY_ONCE)
    assert flow.check().equal
