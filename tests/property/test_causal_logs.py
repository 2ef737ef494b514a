"""A payload log gives what lies beyond a position, whatever was truncated or moved before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.causal.clocks import Position
from penstock.core.causal.logs import Bundle, Part, PayloadLog
from penstock.core.node.messages import DATA, MARK
from penstock.core.time import Time

CHILD = 7

steps = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.integers(0, 2)),
        st.tuples(st.just("mark"), st.integers(1, 2)),
        st.tuples(st.just("truncate"), st.integers(0, 3)),
        st.tuples(st.just("spill"), st.just(0)),
        st.tuples(st.just("open"), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(steps)
@settings(deadline=None, max_examples=100)
def test_the_log_hands_out_what_lies_beyond_and_the_marks_before(
    todo: list[tuple[str, int]],
) -> None:
    log = PayloadLog([CHILD], budget_bytes=24)
    sent: list[Bundle] = []
    marked, low = -1, -1
    for stamp, (what, number) in enumerate(todo, 1):
        if what == "rows":
            part = Part(DATA, 0, Time.root(marked + 1 + number), payload=stamp, size=8)
            sent.append(Bundle((stamp,), (), (part,)))
            log.append(CHILD, sent[-1])
        elif what == "mark":
            marked += number
            sent.append(Bundle((stamp,), (), (Part(MARK, 0, Time.root(marked), stamp),)))
            log.append(CHILD, sent[-1])
        elif what == "truncate":
            low = max(low, min(low + number, marked))
            log.truncate(CHILD, Position((), low))
        elif what == "spill":
            for child, bundle in log.over_budget():
                references = tuple(part.payload for part in bundle.parts)
                log.spilled(child, bundle.stamp, references)
            assert log.memory_bytes <= 24
        else:
            position = Position((), low + number)
            log.rewind(CHILD)
            found = []
            while (bundle := log.take(CHILD)) is not None:
                log.taken(CHILD)
                found += [bundle.stamp for part in bundle.parts if _beyond(position, bundle, part)]
            assert found == [b.stamp for b in sent for p in b.parts if _beyond(position, b, p)]
            marks = [p for b in sent for p in b.parts if p.kind == MARK and not _later(position, p)]
            assert log.marks_at(CHILD, position.epoch) == ({0: marks[-1]} if marks else {})
    kept = [part.size for bundle in log.snapshot()[CHILD] for part in bundle.parts]
    assert log.bytes == sum(kept)
    log.truncate(CHILD, Position((), 1 << 40))
    assert (log.bytes, log.memory_bytes) == (0, 0)


def _beyond(position: Position, bundle: Bundle, part: Part) -> bool:
    return position.beyond(bundle.stamp, part.time.epoch, part.kind == MARK)


def _later(position: Position, part: Part) -> bool:
    return part.time.epoch > position.epoch
