"""The flow that is planned and killed: its totals are exact, and would show if they were not."""

from collections import defaultdict
from typing import Any

from penstock.bench.plan_live_flow import (
    STAGES,
    PlanFlow,
)
from penstock.core.plan import OperatorTopology, solve
from penstock.errors import TransientError
from penstock.testing.local import start_local
from penstock.testing.processes import wait_until


def sizes(query: Any) -> defaultdict[str, float]:
    """What is logged of a row, per stage, as far as it was measured."""
    try:
        found = query.measured()["operators"]
    except TransientError:  # nothing was measured yet
        found = []
    return defaultdict(float, {one["name"]: one["tuple_size"] for one in found})


def test_totals_are_exact_when_a_stage_is_killed() -> None:
    flow = PlanFlow(rate=2000, width=100, rows_max=8000)
    query = start_local(
        flow.flow, flow.hosts, parallelism=1, standby=1, checkpointInterval="300 ms", linger="50 ms"
    )
    try:
        # Documents are dear to log; what the source has sent is not written at all.
        wait_until(lambda: sizes(query)["narrow2"] > 4 * sizes(query)["widen3"] > 0, 30, "sizes")
        assert sizes(query)["widen1"] == 0
        query.kill("narrow4[0]")
        assert query.awaitTermination(30)
    finally:
        query.stop()
    assert query.recoveries[0]["lost"] == ["narrow4[0]"]
    assert flow.wrong() == []
    assert sum({r["bucket"]: r["rows"] for r in flow.totals.toPylist()}.values()) == 8000
    found = query.measured()
    names = [one["name"] for one in found["operators"]]
    assert names == ["rows", *(stage.name for stage in STAGES), "totals", "memory_sink"]
    assert solve(OperatorTopology.from_mapping(found), 0.5).feasible
