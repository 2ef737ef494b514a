"""explain(): a flow as text."""

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.regimes import Causal, Lazy, Regime
from penstock.planning.explain import explain, explain_plan
from penstock.planning.physical import physical_plan

SCHEMA = pa.schema({"n": pa.int64(), "k": pa.string(), "t": pa.timestamp("us")})


def make(offset: int, n: int) -> pa.RecordBatch:
    raise NotImplementedError


def example() -> Flow:
    flow = Flow("views")
    events = flow.generate(make, schema=SCHEMA, rate=1000, name="events")
    counts = (
        events.filter("n > 1")
        .withWatermark("t", "1 second")
        .groupBy(F.window("t", "1 second"), "k")
        .agg(F.count("*").alias("c"))
        .name("counts")
    )
    counts.memory(name="out")
    return flow


def test_stages_are_listed_with_arguments_inputs_and_schemas() -> None:
    lines = explain(example()).splitlines()
    assert lines[0] == "Flow views"
    assert "(0) events: source(make, rate=1000/s)" in lines
    assert any(line.startswith("(1) filter: filter(n > 1)  <- events forward") for line in lines)
    assert any(line.startswith("(3) counts: ") and "hash(k)" in line for line in lines)
    assert any("out: [n: int64, k: string, t: timestamp[us]]" in line for line in lines)


def test_nodes_are_listed_with_what_is_fused_in_them() -> None:
    text = explain(example(), parallelism=3)
    nodes = text[text.index("== Nodes ==") :].splitlines()
    assert nodes[1].startswith("[0] events: 3 nodes: events + filter + watermark + counts_combine")
    assert nodes[2].startswith("      -> [1] counts  hash(")
    assert nodes[3] == "[1] counts: 3 nodes: counts"
    assert nodes[4] == "      -> [2] out  single"
    assert nodes[5] == "[2] out: 1 node on the driver: out"


def test_hosts_are_named_once_they_are_known() -> None:
    plan = physical_plan(example(), 2)
    text = explain_plan(plan, plan.place([1, 2], driver=0))
    assert "[0] events: 2 nodes on host 1, 2: " in text
    assert "[2] out: 1 node on the driver: out" in text


def test_several_outputs_are_numbered() -> None:
    text = explain(example())
    assert "      out0: " in text
    assert "      out1: " in text


def test_a_flow_that_is_not_finished_can_be_explained() -> None:
    flow = Flow()
    flow.generate(make, schema=SCHEMA).filter("n > 1")
    text = explain(flow)
    assert "(1) filter" in text
    assert "== Nodes ==" not in text


def test_the_method_prints_what_it_returns(capsys: pytest.CaptureFixture[str]) -> None:
    text = example().explain()
    assert capsys.readouterr().out == text + "\n"


def test_regimes_that_let_rollbacks_cascade_are_named() -> None:
    def explained(first: Regime, second: Regime, keep: bool) -> str:
        flow = Flow("cascading")
        counts = (
            flow.memory(pa.schema({"key": pa.int64()}), name="rows")
            .groupBy("key")
            .agg(F.count("*").alias("n"))
            .name("first")
            .withRegime(first)
        )
        kept = counts.persist() if keep else counts
        again = kept.groupBy("n").agg(F.count("*").alias("m")).name("second").withRegime(second)
        again.memory()
        return explain(flow)

    text = explained(Lazy(every=4), Lazy(every=6), keep=False)
    assert "Rollbacks may cascade" in text
    assert "checkpoints of first (every 4 epochs) and second (every 6) coincide seldom" in text
    for quiet in (
        explained(Lazy(every=4), Lazy(every=8), keep=False),
        explained(Lazy(every=4), Lazy(every=6), keep=True),
        explained(Causal(), Causal(), keep=False),
    ):
        assert "Rollbacks may cascade" not in quiet
