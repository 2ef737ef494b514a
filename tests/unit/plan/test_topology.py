"""What is accepted as a topology, and what its attributes come to."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.plan import OperatorProfile, OperatorTopology
from penstock.errors import GraphError, SettingsError, UsageError


def described(**changes: Any) -> dict[str, Any]:
    attributes = {
        "selectivity": 0.5,
        "cost": 1e-5,
        "state_size": 100,
        "tuple_size": 1,
        "failure_rate": 0.1,
    }
    data: dict[str, Any] = {
        "input_rate": 1000,
        "storage_cost": 1e-5,
        "operators": [
            {"name": "a", **attributes},
            {"name": "b", **attributes, "inputs": ["a"]},
            {"name": "c", **attributes, "inputs": ["a", "b"]},
        ],
    }
    data.update(changes)
    return data


def test_what_was_measured_counts() -> None:
    data = described()
    data["operators"][1] |= {"rate": 40, "checkpoint_time": 0.25}
    topology = OperatorTopology.from_mapping(data)
    assert topology.rate == (1000.0, 40.0, 520.0)
    assert topology.state_cost == pytest.approx((1e-3, 0.25, 1e-3))
    data["operators"][1]["rate"] = -1
    with pytest.raises(SettingsError, match="rate of operator 'b' is -1"):
        OperatorTopology.from_mapping(data)


def test_rates_add_up_where_streams_join() -> None:
    topology = OperatorTopology.from_mapping(described())
    assert topology.rate == (1000.0, 500.0, 750.0)
    assert topology.shape == "dag"
    assert topology.min_overhead == pytest.approx(0.01)


def test_selectivities_multiply_along_a_chain() -> None:
    def op(name: str, selectivity: float, *inputs: str) -> OperatorProfile:
        return OperatorProfile(name, selectivity, 0.0, 0.0, 1.0, 0.1, inputs)

    chain = OperatorTopology(
        (op("op1", 1.0), op("op2", 0.1, "op1"), op("op3", 0.5, "op2"), op("op4", 1.0, "op3")),
        1000.0,
        1.0,
    )
    assert chain.rate[3] == pytest.approx(50.0)
    assert chain.shape == "chain"


def test_operators_may_be_listed_in_any_order() -> None:
    data = described()
    data["operators"].reverse()
    topology = OperatorTopology.from_mapping(data)
    assert dict(zip(topology.names, topology.rate, strict=True)) == {"a": 1000, "b": 500, "c": 750}


def test_several_roots_without_joins_count_as_a_tree() -> None:
    data = described()
    data["operators"][2]["inputs"] = []
    assert OperatorTopology.from_mapping(data).shape == "tree"


def test_failure_rate_defaults_to_parallelism_times_the_rate_of_an_instance() -> None:
    data = described(instance_failure_rate=0.02)
    del data["operators"][1]["failure_rate"]
    data["operators"][1]["parallelism"] = 4
    assert OperatorTopology.from_mapping(data).failure_rate == (0.1, 0.08, 0.1)


@pytest.mark.parametrize("key", ["input_rate", "storage_cost"])
@pytest.mark.parametrize("value", [None, -1, "3", float("nan"), float("inf"), True, [1]])
def test_a_wrong_number_of_the_topology_is_named(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=key):
        OperatorTopology.from_mapping(described(**{key: value}))


@pytest.mark.parametrize("key", ["selectivity", "cost", "state_size", "tuple_size", "failure_rate"])
@pytest.mark.parametrize("value", [None, -0.5, "x", float("nan"), False])
def test_a_wrong_number_of_an_operator_is_named_with_it(key: str, value: object) -> None:
    data = described()
    data["operators"][1][key] = value
    with pytest.raises(SettingsError, match=f"{key} of operator 'b'"):
        OperatorTopology.from_mapping(data)


def test_a_missing_number_is_named() -> None:
    data = described()
    del data["operators"][2]["tuple_size"]
    with pytest.raises(SettingsError, match="tuple_size of operator 'c' is missing"):
        OperatorTopology.from_mapping(data)


def test_an_unknown_input_is_named() -> None:
    data = described()
    data["operators"][1]["inputs"] = ["nowhere"]
    with pytest.raises(GraphError, match="'b' has an unknown input 'nowhere'"):
        OperatorTopology.from_mapping(data)


def test_a_cycle_is_spelled_out() -> None:
    data = described()
    data["operators"][1]["inputs"] = ["a", "c"]
    with pytest.raises(GraphError, match=r"cycle: (b -> c -> b|c -> b -> c)"):
        OperatorTopology.from_mapping(data)


def test_an_operator_that_feeds_itself_is_a_cycle() -> None:
    data = described()
    data["operators"][0]["inputs"] = ["a"]
    with pytest.raises(GraphError, match="cycle: a -> a"):
        OperatorTopology.from_mapping(data)


@pytest.mark.parametrize(
    "broken",
    [
        [],
        "text",
        {"input_rate": 1, "storage_cost": 1},
        {"input_rate": 1, "storage_cost": 1, "operators": []},
        {"input_rate": 1, "storage_cost": 1, "operators": [3]},
        {"input_rate": 1, "storage_cost": 1, "operators": [{"cost": 1}]},
    ],
)
def test_what_is_no_topology_is_refused(broken: object) -> None:
    with pytest.raises(UsageError):
        OperatorTopology.from_mapping(broken)


def test_names_are_unique() -> None:
    data = described()
    data["operators"][2]["name"] = "b"
    with pytest.raises(GraphError, match="two operators are named 'b'"):
        OperatorTopology.from_mapping(data)


def test_an_input_named_twice_is_refused() -> None:
    data = described()
    data["operators"][1]["inputs"] = ["a", "a"]
    with pytest.raises(GraphError, match="names an input twice"):
        OperatorTopology.from_mapping(data)
