"""Whatever recovery knows survives being packed, whoever wrote it."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.causal import codec
from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import DiffLink
from penstock.core.causal.logs import Fact
from penstock.core.causal.reports import Cut, NodeReport, Saved, Start, Stored, Target
from penstock.core.causal.times import END
from penstock.core.control.recovery import RecoveryRecord
from penstock.errors import InvariantError

nodes = st.integers(0, 9)
epochs = st.integers(-1, 2**40)
stamps = st.lists(st.integers(-3, 2**40), max_size=3).map(tuple) | st.just(END)
links = st.builds(DiffLink, st.integers(-12, 9), stamps, epochs, st.binary(max_size=3))
diffs = st.lists(links, max_size=4).map(tuple)
positions = st.builds(Position, stamps, epochs)
floors = st.builds(Floor, stamps, epochs, epochs)
facts = st.builds(Fact, nodes, stamps, nodes, stamps)
cuts = st.builds(Cut, epochs, st.integers(0, 2**60), st.none() | st.integers(-(2**60), 2**60))
targets = st.builds(Target, stamps, links, st.booleans(), st.binary(max_size=3))
clocks = st.dictionaries(nodes, positions, max_size=3)
reports = st.builds(
    NodeReport,
    nodes,
    stamps,
    epochs,
    epochs,
    clocks,
    st.dictionaries(nodes, floors, max_size=3),
    st.lists(diffs, max_size=3).map(tuple),
    st.lists(facts, max_size=3).map(tuple),
)
saved = st.builds(Saved, st.integers(0, 2**40), reports)
stored = st.builds(
    Stored,
    st.lists(saved, max_size=2).map(tuple),
    st.lists(diffs, max_size=3).map(tuple),
    st.lists(cuts, max_size=3).map(tuple),
)
starts = st.builds(
    Start,
    nodes,
    st.none() | st.integers(0, 99),
    stamps,
    epochs,
    clocks,
    clocks,
    st.lists(targets, max_size=3).map(tuple),
    st.dictionaries(stamps, st.none() | links, max_size=3),
    stamps,
    epochs,
    stamps,
    st.integers(0, 2**60),
    st.lists(cuts, max_size=3).map(tuple),
)
records = st.builds(
    RecoveryRecord,
    st.dictionaries(nodes, st.integers(0, 99), max_size=3),
    st.frozensets(nodes, max_size=3),
    st.integers(0, 99),
)
KINDS = {
    "cut": cuts,
    "diff": diffs,
    "fact": facts,
    "floor": floors,
    "link": links,
    "position": positions,
    "record": records,
    "report": reports,
    "saved": saved,
    "start": starts,
    "stored": stored,
    "target": targets,
}


@given(st.one_of([st.tuples(st.just(kind), values) for kind, values in KINDS.items()]))
def test_what_was_packed_comes_back_with_lists_or_tuples(case):
    kind, value = case
    decode = getattr(codec, f"{kind}_from")
    packed = msgpack.packb(codec.to_plain(value))
    for use_list in (False, True):
        back = decode(msgpack.unpackb(packed, use_list=use_list))
        assert back == value
        assert type(back) is type(value)
    assert decode(codec.to_plain(value)) == value


@given(reports)
def test_equal_values_have_equal_encodings(report):
    turned = NodeReport(
        report.node,
        report.stamp,
        report.completed,
        report.newest,
        dict(reversed(report.clock.items())),
        dict(reversed(report.floors.items())),
        report.diffs,
        report.facts,
    )
    assert msgpack.packb(codec.to_plain(turned)) == msgpack.packb(codec.to_plain(report))


def test_fields_that_an_older_writer_did_not_know_get_their_defaults():
    assert codec.report_from((3, (1,))) == NodeReport(3, (1,))
    assert codec.target_from(((4,), (1, (2,), 0))) == Target((4,), DiffLink(1, (2,), 0))


def test_fields_of_a_newer_writer_are_left_out():
    assert codec.cut_from((*Cut(1, 2, 3), b"more")) == Cut(1, 2, 3)


def test_other_types_are_refused():
    with pytest.raises(InvariantError, match="set has no plain form"):
        codec.to_plain({1})
