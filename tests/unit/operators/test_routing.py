"""Routing by name: where rows go, and what is refused."""

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api.stream import Stream
from penstock.errors import SchemaError, SettingsError
from penstock.operators.base import Hash, Single
from penstock.planning.physical import physical_plan

SCHEMA = pa.schema({"user": pa.string(), "tags": pa.list_(pa.string())})


def rows() -> Stream:
    return Flow().memory(SCHEMA)


def test_routings_become_exchanges() -> None:
    for routing, exchange in {
        "hash(user)": Hash(("user",)),
        "random": Hash(("user",)),  # lists have no stable hash
        "primary": Single(),
    }.items():
        assert rows().route(routing)._stage.inputs[0].exchange == exchange


def test_a_routed_stage_has_as_many_shards_as_asked_for_and_what_follows_is_fused() -> None:
    stream = rows().route("hash(user)", replicas=3).filter("user is not null").duplicate()
    stream.memory(name="kept")
    plan = physical_plan(stream._flow, 2)
    [chain] = [chain for chain in plan.chains if len(chain.stages) > 1]
    assert chain.shards == 3
    assert [stage.operator.kind for stage in chain.stages] == ["key_by", "filter", "duplicate"]


def test_what_cannot_be_routed_is_refused() -> None:
    with pytest.raises(SettingsError, match="no routing 'round-robin'"):
        rows().route("round-robin")
    with pytest.raises(SettingsError, match="the other 2 of 3 would get none"):
        rows().route("primary", replicas=3)
    with pytest.raises(SchemaError, match="no column 'usr'; did you mean 'user'"):
        rows().route("hash(usr)")
    with pytest.raises(SchemaError, match="'random' needs a column"):
        rows().select("tags").route("random")


@pytest.mark.parametrize("copies", [0, -1, True, 1.5, "2"])
def test_copies_are_a_number_from_one_up(copies: int) -> None:
    with pytest.raises(SettingsError, match="whole number from 1 up"):
        rows().duplicate(copies)
