"""Guarantees go together or are refused with a reason; routing is stable."""

import pytest

from penstock.core.delivery.costs import break_even_bytes, cost_of
from penstock.core.delivery.guarantees import (
    PROMISES,
    FailureClass,
    Guarantee,
    GuaranteedStage,
    guarantee_named,
    resolve,
)
from penstock.core.delivery.ids import ParcelId, Role, derive
from penstock.core.delivery.replicated import ReplicaSettings, Sharing
from penstock.core.delivery.routing import RoutingKind, Stages, routing_named
from penstock.errors import GraphError, SettingsError

MOST, LEAST, EXACT = Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE


def chain(**guarantees: Guarantee) -> dict[str, GuaranteedStage]:
    return {
        "source": GuaranteedStage("source", ("parse",), guarantees.get("source")),
        "parse": GuaranteedStage("parse", ("ledger", "metrics"), guarantees.get("parse")),
        "ledger": GuaranteedStage("ledger", (), guarantees.get("ledger")),
        "metrics": GuaranteedStage("metrics", (), guarantees.get("metrics")),
    }


def test_stages_do_what_the_strictest_sink_needs() -> None:
    assert resolve(MOST, chain(ledger=EXACT)) == {
        "source": EXACT,
        "parse": EXACT,
        "ledger": EXACT,
        "metrics": MOST,
    }
    assert set(resolve(MOST, chain()).values()) == {MOST}
    assert resolve(MOST, chain(ledger=LEAST))["parse"] is EXACT
    assert resolve(LEAST, chain())["source"] is LEAST


def test_a_stage_in_the_middle_bounds_what_is_needed_above_it() -> None:
    found = resolve(LEAST, chain(parse=EXACT))
    assert found["source"] is EXACT
    assert found["ledger"] is LEAST


@pytest.mark.parametrize(("weak", "reason"), [(MOST, "may lose rows"), (LEAST, "may double rows")])
def test_a_promise_cannot_be_gained_on_the_way(weak: Guarantee, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason) as caught:
        resolve(EXACT, chain(parse=weak))
    assert "'parse'" in str(caught.value)
    assert "'ledger'" in str(caught.value)


def test_sources_and_sinks_have_to_be_able_to() -> None:
    socket = {
        "in": GuaranteedStage("in", ("out",), replayable=False),
        "out": GuaranteedStage("out"),
    }
    assert resolve(MOST, socket)["in"] is MOST
    with pytest.raises(SettingsError, match="cannot be read again"):
        resolve(LEAST, socket)
    console = {
        "in": GuaranteedStage("in", ("out",)),
        "out": GuaranteedStage("out", idempotent=False),
    }
    assert resolve(LEAST, console)["out"] is LEAST
    with pytest.raises(SettingsError, match="cannot tell what it has"):
        resolve(EXACT, console)


def test_loops_and_unknown_stages() -> None:
    loop = {
        "a": GuaranteedStage("a", ("b",)),
        "b": GuaranteedStage("b", ("c", "d")),
        "c": GuaranteedStage("c", ("b",)),
        "d": GuaranteedStage("d", guarantee=LEAST),
    }
    assert set(resolve(EXACT, loop).values()) == {LEAST}
    with pytest.raises(GraphError, match="not in the flow"):
        resolve(EXACT, {"a": GuaranteedStage("a", ("x",))})


def test_each_guarantee_does_only_its_work() -> None:
    assert not any(MOST.work[:3])
    assert LEAST.work.logs
    assert not LEAST.work.dedup
    assert all(EXACT.work[:3])
    assert ReplicaSettings(LEAST).sharing is Sharing.NOTHING
    assert ReplicaSettings(EXACT).sharing is Sharing.RECORDS


def test_every_class_of_failure_has_its_promise() -> None:
    assert all(set(PROMISES[guarantee]) == set(FailureClass) for guarantee in Guarantee)
    assert not any(may.double for may in PROMISES[MOST].values())
    assert not any(may.double for may in PROMISES[EXACT].values())


def test_names() -> None:
    assert guarantee_named("at-least-once") is LEAST
    with pytest.raises(SettingsError, match="exactly-once"):
        guarantee_named("twice")
    assert routing_named("hash( user )").column == "user"
    assert routing_named("random").kind is RoutingKind.RANDOM
    with pytest.raises(SettingsError, match=r"hash\(column\)"):
        routing_named("hash")
    with pytest.raises(SettingsError, match="at least one stage"):
        ReplicaSettings(depth=0)
    with pytest.raises(SettingsError, match="choose one"):
        ReplicaSettings(mirrored=True, acknowledged=True)


def test_ids_and_routes_never_change() -> None:
    assert derive(ParcelId(Role(0, 1), 5), Role(2, 3)).branch == 16533790528331662082
    routing = routing_named("random")
    places = [routing.place(routing.row_hash(ParcelId(Role(0, 0), n), 0), 4) for n in range(8)]
    assert places == [0, 0, 0, 2, 3, 1, 1, 3]
    assert routing_named("primary").place(1 << 63, 4) == 0


def test_circles_are_refused() -> None:
    with pytest.raises(GraphError, match="circle"):
        Stages({0: 1, 1: 1}, {0: (1,), 1: (0,)})


def test_records_do_not_grow_with_rows() -> None:
    assert cost_of(100, 4) == cost_of(100_000, 4)
    assert cost_of(1000, 2).sibling_bytes < cost_of(1000, 2, mirrored=True).sibling_bytes
    assert break_even_bytes(4, batch=100) < break_even_bytes(4) < 200
