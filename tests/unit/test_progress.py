"""Progress reports: sums, rates, frontiers, and JSON."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api.progress import FlowProgress, progress_of
from penstock.core.control.figures import NodeFigures
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END
from penstock.planning.physical import PhysicalPlan, physical_plan

NOW = datetime(2024, 5, 1, tzinfo=UTC)


def plan() -> PhysicalPlan:
    flow = Flow("views")

    def make(offset: int, n: int) -> pa.RecordBatch:
        raise NotImplementedError

    events = flow.generate(make, schema=pa.schema({"n": pa.int64()}), shards=2, name="events")
    events.keyBy("n", shards=2).name("keyed").memory(name="out")
    return physical_plan(flow, 2)


def figures(epoch: int = 3, **changed: Any) -> NodeFigures:
    usual = NodeFigures(
        rows_in=10,
        rows_out=5,
        busy_ns=500_000_000,
        epoch=epoch,
        watermark_us=7,
        queued_bytes=1,
        counters={"keyed.seen": 2},
    )
    return usual._replace(**changed)


def report(
    nodes: dict[int, NodeFigures],
    before: FlowProgress | None = None,
    at: datetime = NOW,
    committed: int = 3,
) -> FlowProgress:
    latency = {"out": 1500}
    return progress_of("id", "run", "views", at, plan(), nodes, {"out": committed}, latency, before)


def stage(progress: FlowProgress, name: str) -> dict[str, Any]:
    (found,) = [one for one in progress.stages if one["name"] == name]
    return dict(found)


def test_figures_are_summed_per_stage() -> None:
    progress = report({node: figures() for node in range(5)})
    assert [one["name"] for one in progress.stages] == ["events", "keyed", "out"]
    keyed = stage(progress, "keyed")
    assert keyed["nodes"] == 2
    assert keyed["numInputRows"] == 20
    assert keyed["numOutputRows"] == 10
    assert keyed["busySeconds"] == 1.0
    assert keyed["queuedBytes"] == 2
    assert keyed["counters"] == {"keyed.seen": 4}


def test_rows_of_the_sources_are_the_rows_of_the_flow() -> None:
    progress = report({node: figures() for node in range(5)})
    assert progress.numInputRows == 20
    assert [source["name"] for source in progress.sources] == ["events"]
    assert progress.sources[0]["description"] == "plan.<locals>.make"
    assert progress.sinks == [{"name": "out", "epoch": 3, "latencyMs": 1.5}]
    assert progress.batchId == 3


def test_rates_are_what_came_since_the_report_before() -> None:
    first = report({node: figures() for node in range(5)})
    assert first.inputRowsPerSecond == 0
    later = NOW + timedelta(seconds=2)
    nodes = {node: figures(rows_in=110, busy_ns=1_500_000_000) for node in range(5)}
    second = report(nodes, first, later)
    assert second.inputRowsPerSecond == 100
    assert stage(second, "keyed")["inputRowsPerSecond"] == 100
    assert stage(second, "keyed")["load"] == 1.0


def test_two_reports_at_the_same_moment_have_no_rate() -> None:
    first = report({0: figures()})
    assert report({0: figures(rows_in=99)}, first).inputRowsPerSecond == 0


def test_a_stage_is_as_far_as_its_last_node() -> None:
    progress = report({2: figures(epoch=5), 3: figures(epoch=9)})
    assert stage(progress, "keyed")["frontier"] == 5
    assert not stage(progress, "keyed")["ended"]


def test_a_watermark_is_known_when_every_node_has_one() -> None:
    some = report({2: figures(watermark_us=5), 3: figures(watermark_us=None)})
    assert stage(some, "keyed")["watermarkUs"] is None
    both = report({2: figures(watermark_us=5), 3: figures(watermark_us=3)})
    assert stage(both, "keyed")["watermarkUs"] == 3


def test_before_the_first_figures_there_is_nothing_to_say() -> None:
    progress = report({}, committed=-1)
    assert progress.numInputRows == 0
    assert stage(progress, "keyed")["frontier"] == -1
    assert not stage(progress, "keyed")["ended"]
    assert progress.batchId == -1


def test_the_end_is_said_in_words() -> None:
    ended = figures(epoch=EPOCH_END, watermark_us=WATERMARK_END)
    progress = report(dict.fromkeys(range(5), ended))
    keyed = stage(progress, "keyed")
    assert keyed["ended"]
    assert keyed["endOfInput"]
    assert keyed["frontier"] == -1


def test_a_report_is_json_and_has_attributes() -> None:
    progress = report({node: figures() for node in range(5)})
    assert json.loads(progress.json) == progress
    assert json.loads(progress.prettyJson) == progress
    assert "\n" not in progress.json
    assert progress.name == "views"
    with pytest.raises(AttributeError, match="there is no 'nothing' in this progress"):
        _ = progress.nothing
