"""The replay over dense times, and the integer table, against their constraints."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.causal.clocks import Position
from penstock.core.causal.diffs import DiffLink
from penstock.core.causal.replay import Replay, slot
from penstock.core.causal.reports import Target
from penstock.core.causal.table import Pending, is_valid, solve
from penstock.core.causal.times import after
from penstock.testing.reference_replay import all_tables

PARENTS = (0, 1, 2)
CHILDREN = (10, 11, 12)


@st.composite
def executions(draw: st.DrawFn) -> tuple[list[tuple[int, int, tuple[int, ...]]], dict[int, int]]:
    """An execution before a failure, and how much of its output each child has received."""
    steps = []
    next_of = dict.fromkeys(PARENTS, 0)
    for _ in range(draw(st.integers(1, 10))):
        parent = draw(st.sampled_from(PARENTS))
        next_of[parent] += 1
        children = tuple(child for child in CHILDREN if draw(st.booleans()))
        steps.append((parent, next_of[parent], children))
    received = {child: draw(st.integers(0, len(steps))) for child in CHILDREN}
    return steps, received


@settings(max_examples=100)
@given(executions(), st.randoms(use_true_random=False))
def test_a_dense_replay_sends_every_child_what_it_lacks_and_nothing_twice(  # type: ignore[no-untyped-def]
    execution, random
) -> None:
    steps, received = execution
    had: dict[int, list[tuple[int, int]]] = {child: [] for child in CHILDREN}
    known: dict[int, tuple[int, int]] = {}
    positions = dict.fromkeys(CHILDREN, Position((), -1))
    for number, (parent, time, children) in enumerate(steps, 1):
        for child in children:
            if number <= received[child]:
                had[child].append((parent, time))
                known[number] = (parent, time)
                positions[child] = Position((number,), -1)
    start = min(position.stamp for position in positions.values())
    handled = dict.fromkeys(PARENTS, 0)
    for number, (parent, time) in known.items():
        if (number,) <= start:
            handled[parent] = max(handled[parent], time)
    targets = [
        Target((number,), DiffLink(parent, (time,), 0))
        for number, (parent, time) in sorted(known.items())
        if (number,) > start
    ]
    replay: Replay[tuple[int, int, tuple[int, ...]]] = Replay(targets, PARENTS)
    rows = {p: [s for s in steps if s[0] == p and s[1] > handled[p]] for p in PARENTS}
    stamp = start
    hit = []
    order: dict[int, list[int]] = {p: [] for p in PARENTS}
    while any(rows.values()) or True:
        turn = replay.next({}, ())
        if turn is None:
            waiting = [p for p in PARENTS if rows[p]]
            if not waiting:
                break
            parent = random.choice(waiting)
            step = rows[parent].pop(0)
            replay.arrived(parent, (step[1],), 0, step)
            continue
        assert turn.item is not None
        parent, time, children = turn.item
        skipped: tuple[int, ...] = ()
        if turn.exactly is not None:
            stamp = turn.exactly
            hit.append(stamp)
        elif turn.before is not None:
            stamp, skipped = slot(stamp, turn.before, children, positions)
        else:
            stamp = after(max([stamp, *(p.stamp for p in positions.values())]))
        order[parent].append(time)
        for child in children:
            if child not in skipped and stamp > positions[child].stamp:
                had[child].append((parent, time))
    assert replay.over
    assert hit == [target.stamp for target in targets]
    assert all(times == sorted(times) for times in order.values())
    for child in CHILDREN:
        wanted = sorted((parent, time) for parent, time, children in steps if child in children)
        assert sorted(had[child]) == wanted
        for parent in PARENTS:
            times = [time for p, time in had[child] if p == parent]
            assert times == sorted(times)


@st.composite
def tables(draw: st.DrawFn):  # type: ignore[no-untyped-def]
    children = ("C1", "C2", "C3")[: draw(st.integers(1, 3))]
    pending = [
        Pending(parent, time, tuple(c for c in children if draw(st.booleans())))
        for parent in ("A1", "A2", "A3")[: draw(st.integers(1, 3))]
        for time in range(1, draw(st.integers(1, 3)) + 1)
    ]
    first = draw(st.integers(1, 3))
    last = first + draw(st.integers(0, 5))
    columns = sorted(draw(st.sets(st.integers(first, last), min_size=1, max_size=3)))
    chosen = draw(st.permutations(pending))[: len(columns)]
    targets: dict[int, tuple[str, int]] = {}
    newest: dict[str, int] = {}
    for column, message in zip(columns, chosen, strict=False):
        if newest.get(message.parent, 0) < message.time:
            newest[message.parent] = message.time
            targets[column] = message.key
    resume = {child: draw(st.integers(first, last + 1)) for child in children}
    return pending, targets, resume, first


@settings(max_examples=150)
@given(tables())
def test_earliest_deadline_first_finds_a_table_exactly_if_there_is_one(table) -> None:  # type: ignore[no-untyped-def]
    pending, targets, resume, first = table
    found = solve(pending, targets, resume, first)
    exists = next(all_tables(pending, targets, resume, first), None) is not None
    assert (found is not None) == exists
    if found is not None:
        assert is_valid(found, pending, targets, resume)
