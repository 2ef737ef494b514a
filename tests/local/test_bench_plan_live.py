"""The flow that is planned and killed: its totals are exact, and would show if they were not."""

import time

from penstock.bench.plan_live_flow import (
    STAGES,
    PlanFlow,
)
from penstock.core.plan import OperatorTopology, solve
from penstock.testing.local import start_local


def test_totals_are_exact_when_a_stage_is_killed() -> None:
    flow = PlanFlow(rate=2000, width=100, rows_max=5000)
    query = start_local(
        flow.flow, flow.hosts, parallelism=1, standby=1, checkpointInterval="300 ms", linger="50 ms"
    )
    try:
        time.sleep(0.8)
        query.kill("narrow4[0]")
        assert query.awaitTermination(30)
    finally:
        query.stop()
    assert query.recoveries[0]["lost"] == ["narrow4[0]"]
    assert flow.wrong() == []
    assert sum({r["bucket"]: r["rows"] for r in flow.totals.toPylist()}.values()) == 5000
    found = query.measured()
    names = [one["name"] for one in found["operators"]]
    assert names == ["rows", *(stage.name for stage in STAGES), "totals", "memory_sink"]
    sizes = {one["name"]: one["tuple_size"] for one in found["operators"]}
    # Documents are dear to log; what the source has sent is not written at all.
    assert sizes["narrow2"] > 4 * sizes["widen3"] > 0 == sizes["widen1"]
    assert solve(OperatorTopology.from_mapping(found), 0.5).feasible
