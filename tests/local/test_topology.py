"""Flows from TOML: what they become, and errors that point at the line that is wrong."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.api.flow import Flow
from penstock.api.regimes import Causal, Lazy
from penstock.api.vertex import Time, Vertex
from penstock.cli.app import app
from penstock.connectors.base import Sink
from penstock.core.delivery.guarantees import Guarantee
from penstock.errors import SettingsError, TopologyError
from penstock.planning.physical import physical_plan
from penstock.testing.local import run_local
from penstock.topology import load_topology
from penstock.topology.keys import COMMON, KINDS, TOP, keys_of

ROOT = Path(__file__).resolve().parents[2]

FUNCTIONS = """
import pyarrow as pa
from penstock import Vertex
from penstock.connectors.memory import MemorySource, MemorySink
from penstock.connectors.foreach_batch import ForeachBatch

KEPT = []
SEEN = []

def numbers(offset, n, first=0):
    values = range(offset + first, offset + first + n)
    return pa.record_batch({"n": list(values), "k": [f"k{v % 3}" for v in values],
        "t": pa.array([v * 1_000_000 for v in values], pa.timestamp("us"))})

def plus(batches, by=1):
    import pyarrow.compute as pc
    for batch in batches:
        yield batch.set_column(0, "n", pc.add(batch["n"], by))

class Echo(Vertex):
    stateless = True

    def onRecv(self, port, batch, time):
        self.sendBy(0, batch, time)

def keep(rows, epoch):
    KEPT.extend(rows.to_pylist())

def sink(text="x"):
    return ForeachBatch(lambda rows, epoch: SEEN.extend(rows.to_pylist()))

def source():
    made = MemorySource(pa.schema({"n": pa.int64()}))
    made.push([{"n": 1}])
    return made

number = 7
"""

BASE = """
[source.numbers]
type = "generate"
function = "topology_functions.py:numbers"
rows = 30
{stages}
[sink.kept]
type = "foreachBatch"
input = "{last}"
function = "topology_functions.py:keep"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "topology_functions", raising=False)
    (tmp_path / "topology_functions.py").write_text(FUNCTIONS)
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "flow.toml"
    path.write_text(text)
    return path


def flow_of(folder: Path, stages: str, last: str = "x") -> Flow:
    return load_topology(written(folder, BASE.format(stages=stages, last=last))).flow


def results(flow: Flow) -> list[dict[str, Any]]:
    """The rows that came out, in a thread run."""
    module = next(one for one in flow.modules if one.__name__ == "topology_functions")
    run_local(flow, epochInterval="10 ms")
    return list(module.KEPT)


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["n"] for row in rows)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ('type = "filter"\ncondition = "n >= 28"', [28, 29]),
        ('type = "filter"\ncondition = "n >= 28"\nreplicas = 2\nrouting = "random"', [28, 29]),
        ('type = "filter"\ncondition = "n >= 28"\nrouting = "primary"', [28, 29]),
        ('type = "select"\ncolumns = ["n + 1 AS n"]', list(range(1, 31))),
        ('type = "withColumn"\ncolumn = "n"\nexpression = "n * 2"', list(range(0, 60, 2))),
        ('type = "drop"\ncolumns = "k"', list(range(30))),
        ('type = "duplicate"', sorted([*range(30), *range(30)])),
        ('type = "unique"\ncolumns = ["k"]\nreplicas = 2\nrouting = "hash(k)"', [0, 1, 2]),
        ('type = "unique"\nrouting = "primary"', list(range(30))),
        ('type = "union"', list(range(30))),
        ('type = "custom"\nfunction = "topology_functions.py:plus"', list(range(1, 31))),
        (
            'type = "custom"\nfunction = "topology_functions:plus"\narguments = { by = 5 }',
            list(range(5, 35)),
        ),
        (
            'type = "custom"\nfunction = "topology_functions.py:Echo"\nreplicas = 2\n'
            'routing = "hash(k)"',
            list(range(30)),
        ),
        ('type = "withWatermark"\ncolumn = "t"\ndelay = "1 second"', list(range(30))),
    ],
)
def test_stages_do_what_their_names_say(folder: Path, stage: str, expected: list[int]) -> None:
    flow = flow_of(folder, f'\n[stage.x]\ninput = "numbers"\n{stage}\n')
    assert numbers(results(flow)) == expected


def test_a_stage_may_have_several_inputs_and_tables_may_come_in_any_order(folder: Path) -> None:
    stages = """
[stage.x]
type = "duplicate"
copies = 1
input = ["small", "large"]
[stage.large]
type = "filter"
input = "numbers"
condition = "n > 27"
[stage.small]
type = "filter"
input = "numbers"
condition = "n < 2"
"""
    assert numbers(results(flow_of(folder, stages))) == [0, 1, 28, 29]


def test_counts_and_aggregates(folder: Path) -> None:
    flow = flow_of(folder, '\n[stage.x]\ntype = "count"\nby = "k"\ninput = "numbers"\n')
    newest = {row["k"]: row["count"] for row in results(flow)}
    assert newest == {"k0": 10, "k1": 10, "k2": 10}
    windows = """
[stage.timed]
type = "withWatermark"
input = "numbers"
column = "t"
delay = "0 seconds"
[stage.x]
type = "aggregate"
input = "timed"
by = "k"
window = { column = "t", size = "15 seconds" }
aggregates = { total = "sum(n)", rows = "count(*)" }
replicas = 2
"""
    rows = results(flow_of(folder, windows))[len(newest) :]
    found = sorted((row["k"], row["total"], row["rows"]) for row in rows if row.get("total"))
    expected = [
        (f"k{k}", sum(range(start + k, start + 15, 3)), 5) for k in range(3) for start in (0, 15)
    ]
    assert found == sorted(expected)


def test_two_streams_are_joined(folder: Path) -> None:
    stages = """
[stage.left]
type = "withWatermark"
input = "numbers"
column = "t"
delay = "0 seconds"
[stage.renamed]
type = "select"
input = "numbers"
columns = ["n AS m", "k", "t AS u"]
[stage.right]
type = "withWatermark"
input = "renamed"
column = "u"
delay = "0 seconds"
[stage.x]
type = "join"
input = ["left", "right"]
on = "k"
within = "0 seconds"
"""
    rows = results(flow_of(folder, stages))
    assert sorted((row["n"], row["m"]) for row in rows) == [(n, n) for n in range(30)]


def test_files_parquet_and_paths_as_seen_from_the_file(folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.csv").write_text("word,n\nx,1\ny,2\n")
    text = """
name = "copy"
guarantee = "at-least-once"
[run]
checkpointLocation = "store"
parallelism = 1
[spark]
ui.enabled = false
executor.memory = "1g"
[source.rows]
type = "files"
path = "in"
format = "csv"
schema = "word STRING, n BIGINT"
options = { header = true }
[sink.out]
type = "parquet"
input = "rows"
path = "out"
"""
    topology = load_topology(written(folder, text))
    assert topology.flow.name == "copy"
    assert topology.conf == {"spark.ui.enabled": "false", "spark.executor.memory": "1g"}
    assert topology.options == {
        "checkpointLocation": str(folder / "store"),
        "parallelism": 1,
        "guarantee": "at-least-once",
    }
    run_local(topology.flow, **topology.options)
    assert pq.read_table(folder / "out").column("n").to_pylist() == [1, 2]


def test_sources_and_sinks_of_ones_own(folder: Path) -> None:
    text = """
[source.own]
type = "custom"
function = "topology_functions.py:source"
[sink.seen]
type = "custom"
input = "own"
function = "topology_functions.py:sink"
arguments = { text = "y" }
[sink.shown]
type = "console"
input = "own"
rows = 0
"""
    flow = load_topology(written(folder, text)).flow
    run_local(flow)
    assert flow.modules[0].SEEN == [{"n": 1}]


def test_replicas_and_routing_become_shards(folder: Path) -> None:
    stages = '\n[stage.x]\ntype="filter"\ninput="numbers"\ncondition="n>1"\nreplicas=3\n'
    plan = physical_plan(flow_of(folder, stages), 1)
    assert {s.name: c.shards for c in plan.chains for s in c.stages}["x"] == 3


def test_regimes_of_stages_and_of_the_flow(folder: Path) -> None:
    stages = '\n[stage.x]\ntype="count"\ninput="numbers"\nregime={type="Lazy",every=5}\n'
    text = '[run]\nregime = "Causal"\n' + BASE.format(stages=stages, last="x")
    topology = load_topology(written(folder, text))
    assert topology.options["regime"] == Causal()
    [counted] = [stage for stage in topology.flow.stages if stage.name == "x"]
    assert counted.regime == Lazy(every=5)


def test_guarantees_of_stages_and_sinks(folder: Path) -> None:
    text = BASE.format(stages="", last="numbers").replace(
        "[source", 'guarantee = "at-most-once"\n[source'
    )
    text += '\n[sink.exact]\ntype="parquet"\ninput="numbers"\npath="o"\nguarantee="exactly-once"\n'
    topology = load_topology(written(folder, text))
    promised = topology.flow.guarantees(topology.options["guarantee"])
    assert promised == {
        "numbers": "exactly-once",
        "kept": "at-most-once",
        "exact": "exactly-once",
        "exact_commit": "exactly-once",
    }


PROBLEMS = [
    ("[source.a", 1, 10, "not TOML"),
    ('[source.a]\ntype = "generate"', 1, 1, "lacks 'sink'"),
    (BASE + "\nnam = 1\n", 12, 1, "no key 'nam'"),
    ("nam = 'x'\n" + BASE, 1, 1, "a topology: no key 'nam'; did you mean 'name'?"),
    ("name = 7\n" + BASE, 1, 8, "name is a text in quotes"),
    ("name = 'a b'\n" + BASE, 1, 8, "flow name 'a b'"),
    ("guarantee = 'exactly'\n" + BASE, 1, 13, "did you mean 'exactly-once'?"),
    ("[run]\nepochIntervall = 1\n" + BASE, 2, 1, "did you mean 'epochInterval'?"),
    ("[run]\nregime = 'Lasy'\n" + BASE, 2, 10, "no regime 'Lasy'; did you mean 'Lazy'?"),
    ("[run]\nregime = 7\n" + BASE, 2, 10, "a regime is its name"),
    (BASE.replace("rows = 30", "regime = {type = 'Lazy', evry = 1}"), 5, 10, "no argument 'evry'"),
    ("[run]\nhosts = 0\n" + BASE, 2, 9, "hosts must be a whole number"),
    (BASE.replace("generate", "generated"), 3, 8, "no source of type 'generated'; did you mean"),
    (BASE.replace('type = "generate"\n', ""), 2, 1, "source 'numbers' lacks 'type'"),
    (BASE.replace("rows = 30", "rows = 3.5"), 5, 8, "rows is a whole number; got 3.5"),
    (BASE.replace("rows = 30", "replicas = 0"), 5, 12, "replicas are 1 or more"),
    (BASE.replace("rows = 30", "replicas = true"), 5, 12, "replicas is a whole number"),
    (BASE.replace("rows = 30", "row = 30"), 5, 1, "no key 'row'; did you mean 'rows'?"),
    (BASE.replace("py:numbers", "py:nubers"), 4, 12, "has no 'nubers'; did you mean 'numbers'?"),
    (BASE.replace("topology_functions.py:numbers", "none.py:x"), 4, 12, "no file none.py"),
    (BASE.replace("topology_functions.py:numbers", "no_module:x"), 4, 12, "cannot import"),
    (BASE.replace("py:numbers", "py:number"), 4, 12, "is 7, not a function"),
    (BASE.replace("topology_functions.py:numbers", "numbers"), 4, 12, "write it as"),
    (BASE.replace('"{last}"', '"nombers"'), 9, 9, "'nombers' is no source or stage; did you mean"),
    (BASE.replace('"{last}"', '["numbers", "kept"]'), 9, 21, "is a sink: nothing leaves it"),
    (BASE.replace('"{last}"', "[]"), 9, 9, "input is a text or a list of texts"),
    (BASE.replace("[sink.kept]", "[sink.numbers]"), 7, 1, "a source named 'numbers' already"),
    (BASE.replace("[sink.kept]", '[sink."a b"]'), 7, 1, "sink name 'a b'"),
    (BASE.replace("[sink.kept]", "[sink]\nx = 1\n[sink.kept]"), 8, 5, "sink 'x' is a table"),
]
STAGE = '\n[stage.x]\ninput = "numbers"\n'
OF_STAGES = [
    (STAGE + 'type = "filter"\n', 7, 1, "lacks 'condition': SQL"),
    (STAGE + 'type = "filter"\ncondition = "m > 1"\n', 10, 13, "'m'"),
    (STAGE + 'type = "filter"\ncondition = "n"\n', 10, 13, "must be boolean"),
    (STAGE + 'type = "filtre"\n', 9, 8, "no stage of type 'filtre'; did you mean 'filter'?"),
    (STAGE + 'type = "filter"\ncondition = ["n > 1"]\n', 10, 13, "condition is a text"),
    (STAGE + 'type = "select"\ncolumns = ["n", 1]\n', 10, 11, "a list of texts"),
    (STAGE + 'type = "duplicate"\nrouting = "hash(z)"\n', 10, 11, "no column 'z'"),
    (STAGE + 'type = "duplicate"\nrouting = "robin"\n', 10, 11, "no routing 'robin'"),
    (
        STAGE + 'type = "duplicate"\nreplicas = 2\nrouting = "primary"\n',
        11,
        11,
        "the other 1 of 2 would get none",
    ),
    (
        STAGE + 'type = "unique"\ncolumns = "k"\nrouting = "random"\n',
        10,
        11,
        "does not bring equal values of [k] together: leave it out, or choose 'hash(k)'",
    ),
    (STAGE + 'type = "count"\nreplicas = 2\n', 7, 1, "one replica has to see all rows"),
    (STAGE + 'type = "unique"\nwithin = "soon"\n', 10, 10, "within is a duration"),
    (STAGE + 'type = "join"\non = "k"\nwithin = "1 second"\n', 8, 9, "has two inputs"),
    (STAGE + 'type = "aggregate"\naggregates = { s = "summ(n)" }\n', 10, 14, "did you mean 'sum'?"),
    (
        STAGE + 'type = "aggregate"\naggregates = {s="sum(n)"}\nwindow = {column="t"}\n',
        10,
        14,
        "window lacks 'size'",
    ),
    (
        STAGE + 'type = "custom"\nfunction = "topology_functions.py:plus"\nschema = "n what"\n',
        10,
        12,
        "schema",
    ),
    (
        STAGE + 'type = "union"\n[stage.y]\ntype = "union"\ninput = ["x", "z"]\n[stage.z]\n'
        'type = "union"\ninput = "y"\n',
        15,
        9,
        "in a circle: ",
    ),
    (
        STAGE + 'type = "union"\n[stage.y]\ntype = "union"\ninput = "x"\n',
        10,
        1,
        "not read by any operator",
    ),
    (
        STAGE + 'type = "union"\nguarantee = "at-most-once"\n',
        10,
        13,
        "may lose rows before they get there",
    ),
]


@pytest.mark.parametrize(("text", "line", "column", "said"), PROBLEMS + OF_STAGES)
def test_an_error_points_at_the_line_and_column(
    folder: Path, text: str, line: int, column: int, said: str
) -> None:
    if text.startswith(STAGE):
        text = BASE.replace("{stages}", text.rstrip("\n"))
    last = "x" if "[stage.x]" in text else "numbers"
    text = text.replace("{stages}", "").replace("{last}", last)
    with pytest.raises(TopologyError) as raised:
        load_topology(written(folder, text))
    problems = raised.value.parameters["problems"]
    told = [(one["line"], one["column"]) for one in problems if said in one["message"]]
    assert told == [(line, column)], f"{raised.value}\n{text}"


def test_all_problems_are_told_at_once(folder: Path) -> None:
    text = BASE.format(stages="", last="numbers").replace("rows = 30", "row = 30\nrat = 1")
    with pytest.raises(TopologyError) as raised:
        load_topology(written(folder, text))
    assert [one["line"] for one in raised.value.parameters["problems"]] == [5, 6]
    assert f"{folder / 'flow.toml'}:5:1: " in raised.value.message
    assert f"{folder / 'flow.toml'}:6:1: " in raised.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"cannot read .*none\.toml"):
        load_topology(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TopologyError, match="not UTF-8"):
        load_topology(tmp_path / "bytes.toml")


# -- guarantees of flows -------------------------------------------------------------------------


class OnceOnly(Sink):
    """A sink that cannot tell what it has."""

    kind = "once_only"
    idempotent = False

    def vertex(self) -> Vertex:
        class Nothing(Vertex):
            def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
                pass

        return Nothing()


def test_what_does_not_go_together_is_refused_when_a_flow_starts() -> None:
    flow = Flow()
    rows = flow.memory(pa.schema({"n": pa.int64()}), name="rows")
    rows.to(OnceOnly(), name="out")
    with pytest.raises(SettingsError, match="sink 'out' cannot tell what it has already"):
        run_local(flow)
    assert flow.guarantees("at-least-once")["rows"] == "at-least-once"
    rows.withGuarantee("at-most-once")
    with pytest.raises(SettingsError, match="may lose rows before they get there"):
        flow.guarantees("at-least-once")
    with pytest.raises(SettingsError, match="no stage 'row'; did you mean 'rows'"):
        flow.setGuarantee("row", "at-most-once")
    with pytest.raises(SettingsError, match="no guarantee 'twice'"):
        rows.withGuarantee("twice")
    with pytest.raises(SettingsError, match="guarantee is 'at-most-once' or"):
        run_local(flow, guarantee="twice")


def test_a_source_that_cannot_be_read_again_is_at_most_once() -> None:
    flow = Flow()
    rows = flow.memory(pa.schema({"n": pa.int64()}), name="rows")
    rows._source.replayable = False
    rows.memory(name="out")
    with pytest.raises(SettingsError, match="source 'rows' cannot be read again"):
        flow.guarantees("exactly-once")
    assert set(flow.guarantees("at-most-once").values()) == {Guarantee.AT_MOST_ONCE.value}


# -- the command and the manual ------------------------------------------------------------------


def test_check_describes_a_flow_or_tells_its_problems(folder: Path) -> None:
    path = str(written(folder, BASE.format(stages="", last="numbers")))
    result = CliRunner().invoke(app, ["run", path, "--check", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["valid"], [stage["name"] for stage in found["stages"]]) == (
        True,
        ["numbers", "kept"],
    )
    assert "(0) numbers: source" in CliRunner().invoke(app, ["run", path, "--check"]).stdout
    path = str(written(folder, BASE.format(stages="", last="nombers")))
    result = CliRunner().invoke(app, ["run", path, "--check", "--json"])
    assert result.exit_code == 2
    [problem] = json.loads(result.stdout)["problems"]
    assert (problem["line"], problem["column"]) == (9, 9)


def test_the_example_is_valid() -> None:
    flow = load_topology(ROOT / "examples" / "words.toml").flow
    assert physical_plan(flow, 2).sinks


def test_the_manual_has_every_type_and_key() -> None:
    manual = (ROOT / "docs" / "topologies.md").read_text()
    for key in TOP:
        assert f"| `{key.name}` |" in manual
    for sort, kinds in KINDS.items():
        for kind, described in kinds.items():
            part = manual.partition(f"\n## {sort.title()}s\n")[2].partition("\n## ")[0]
            [row] = [line for line in part.splitlines() if line.startswith(f"| `{kind}` |")]
            assert described.about in row
            for key in described.keys:
                assert f"`{key.name}`" in row, (kind, key.name)
            assert set(keys_of(sort, kind)) >= {key.name for key in COMMON[sort]}
