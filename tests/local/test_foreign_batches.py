"""What users' code hands to the engine has the declared schema, or is refused."""

from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow, Vertex
from penstock.connectors.base import Reader, Source, SourceContext
from penstock.errors import FunctionError, SchemaError
from penstock.testing.local import run_local

NUMBERS = pa.schema({"n": pa.int64()})
DECLARED = pa.schema({"x": pa.float64(), "k": pa.string()})


class Sends(Vertex):
    stateless = True
    made: pa.RecordBatch
    port = 0

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Any) -> None:
        self.sendBy(self.port, self.made, time)


class BySwappedTypes(Sends):
    made = pa.record_batch({"k": ["a", "b", "c"], "x": pa.array([1, 2, 3], pa.int64())})


class ByText(Sends):
    made = pa.record_batch({"k": ["a"], "x": ["1,5"]})


class ByPort(Sends):
    made = pa.record_batch({"x": [1.0], "k": ["a"]})
    port = 1


def sent(vertex: type[Vertex], hosts: int = 1, key: bool = True) -> list[dict[str, Any]]:
    flow = Flow()
    numbers = flow.memory(NUMBERS, name="numbers")
    made = numbers.process(vertex, DECLARED).name("made")
    sink = (made.keyBy("k", shards=2) if key else made).memory()
    numbers.push([{"n": 1}])
    run_local(flow, hosts=hosts)
    return sorted(sink.toPylist(), key=lambda row: row["k"])


@pytest.mark.parametrize(("hosts", "key"), [(1, False), (2, True)])
def test_a_vertex_sends_what_its_schema_says_on_every_path(hosts: int, key: bool) -> None:
    expected = [{"x": 1.0, "k": "a"}, {"x": 2.0, "k": "b"}, {"x": 3.0, "k": "c"}]
    assert sent(BySwappedTypes, hosts, key) == expected


def test_a_vertex_that_sends_another_type_is_refused_by_name() -> None:
    with pytest.raises(FunctionError, match=r"'made' gave column 'x' as string.*declared double"):
        sent(ByText)


def test_a_vertex_that_sends_on_a_port_that_is_not_there_is_refused() -> None:
    with pytest.raises(FunctionError, match=r"stage 'made'.*port 1 of 1"):
        sent(ByPort)


class Own(Source):
    """A source of the user's own that gives another type than it says."""

    schema = pa.schema({"x": pa.float64()})

    def shards(self, wanted: int) -> int:
        return 1

    def open(self, context: SourceContext) -> Reader:
        return OwnReader()


class OwnReader(Reader):
    done = False

    def read(self, rows_max: int, now_us: int, until: Any = None) -> pa.RecordBatch | None:
        if self.done or until == 0:
            return None
        self.done = True
        return pa.record_batch({"x": pa.array([1, 2], pa.int64())})

    def position(self) -> int:
        return 2 * self.done

    def exhausted(self) -> bool:
        return self.done


def test_a_source_of_ones_own_gives_what_its_schema_says() -> None:
    flow = Flow()
    sink = flow.source(Own(), name="own").memory()
    run_local(flow)
    assert [row["x"] for row in sink.toPylist()] == [1.0, 2.0]


def test_a_generator_may_give_types_that_fit_and_is_refused_by_name_otherwise() -> None:
    def made(offset: int, n: int) -> pa.RecordBatch:
        return pa.record_batch({"x": pa.array(range(offset, offset + n), pa.int32())})

    def run(kind: pa.DataType) -> list[dict[str, Any]]:
        flow = Flow()
        source = flow.generate(made, rows=3, shards=1, schema=pa.schema({"x": kind}), name="made")
        sink = source.memory()
        run_local(flow)
        return sink.toPylist()

    assert run(pa.float64()) == [{"x": 0.0}, {"x": 1.0}, {"x": 2.0}]
    with pytest.raises(SchemaError, match=r"'made'.*column 'x' as int32.*declared timestamp"):
        run(pa.timestamp("us"))
