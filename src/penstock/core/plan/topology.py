"""What the planner plans for: operators, their measured attributes and who feeds whom.

Decides whether a description is a topology at all, and what each operator receives, spends and
holds per unit of time; never decides a plan. Follows chapter 2 of "FastRecover" (S. Yaduvanshi,
2016), extended to operators with several inputs and to several source-fed operators.

Units are the caller's: one unit of time and one unit of size, used throughout. The paper's are the
minute and the kilobyte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.errors import GraphError, SettingsError

__all__ = ["OperatorProfile", "OperatorTopology", "Shape"]

Shape = Literal["chain", "tree", "dag"]

_ATTRIBUTES = ("selectivity", "cost", "state_size", "tuple_size", "failure_rate")
_MEASURED = ("rate", "checkpoint_time")


@dataclass(frozen=True, slots=True)
class OperatorProfile:
    """One operator: the paper's ⟨s, τ, π, θ, ρ⟩ and the names of the operators that feed it.

    ``selectivity`` is tuples out per tuple in, ``cost`` time per tuple, ``state_size`` the size of
    its state, ``tuple_size`` the size of an input tuple, ``failure_rate`` failures per unit of
    time. Without ``inputs`` it is fed by the source.

    Two more may be given where they were measured: ``rate``, the tuples that it receives per unit
    of time, and ``checkpoint_time``, what one checkpoint takes. Else they follow from the rest.
    """

    name: str
    selectivity: float
    cost: float
    state_size: float
    tuple_size: float
    failure_rate: float
    inputs: tuple[str, ...] = ()
    rate: float | None = None
    checkpoint_time: float | None = None

    def __post_init__(self) -> None:
        for attribute in _ATTRIBUTES:
            _check_number(getattr(self, attribute), attribute, f"operator {self.name!r}")
        for attribute in _MEASURED:
            if getattr(self, attribute) is not None:
                _check_number(getattr(self, attribute), attribute, f"operator {self.name!r}")


@dataclass(frozen=True, slots=True)
class OperatorTopology:
    """Operators in the order given, and what follows from their attributes.

    Laws
      * ``rate[i]`` is the input rate for a source-fed operator, else the sum over its inputs ``p``
        of ``rate[p] * selectivity[p]`` (equation 3.4, and section 3.2 for a chain); but what was
        measured counts, where it was.
      * ``order`` visits every operator after all of its inputs.
      * Per unit of time, an anchor spends ``log_cost[i]`` on its input log, whatever its
        checkpoint frequency; one checkpoint costs ``state_cost[i]``; replaying what arrived in one
        unit of time costs ``replay_cost[i]`` of processing and ``log_cost[i]`` of reading.

    >>> chain = OperatorTopology(
    ...     (
    ...         OperatorProfile("parse", 0.5, 1e-5, 0.0, 1.0, 0.1),
    ...         OperatorProfile("count", 1.0, 1e-5, 100.0, 2.0, 0.1, inputs=("parse",)),
    ...     ),
    ...     input_rate=1000.0,
    ...     storage_cost=1e-4,
    ... )
    >>> chain.shape, chain.rate, chain.log_cost
    ('chain', (1000.0, 500.0), (0.1, 0.1))
    """

    operators: tuple[OperatorProfile, ...]
    input_rate: float
    storage_cost: float
    parents: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    children: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    order: tuple[int, ...] = field(init=False, repr=False, compare=False)
    rate: tuple[float, ...] = field(init=False, repr=False, compare=False)
    failure_rate: tuple[float, ...] = field(init=False, repr=False, compare=False)
    log_cost: tuple[float, ...] = field(init=False, repr=False, compare=False)
    state_cost: tuple[float, ...] = field(init=False, repr=False, compare=False)
    replay_cost: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_number(self.input_rate, "input_rate", "the topology")
        _check_number(self.storage_cost, "storage_cost", "the topology")
        if not self.operators:
            raise GraphError("the topology has no operators: `operators` is empty")
        parents = _parents(self.operators)
        children: list[list[int]] = [[] for _ in parents]
        for i, above in enumerate(parents):
            for p in above:
                children[p].append(i)
        order = _topological(self.operators, parents, children)
        rate = [0.0] * len(parents)
        for i in order:
            measured = self.operators[i].rate
            if measured is not None:
                rate[i] = measured
            elif parents[i]:
                rate[i] = sum(rate[p] * self.operators[p].selectivity for p in parents[i])
            else:
                rate[i] = self.input_rate
        ops, price = self.operators, self.storage_cost
        derived: dict[str, Any] = {
            "parents": parents,
            "children": tuple(tuple(below) for below in children),
            "order": tuple(order),
            "rate": tuple(rate),
            "failure_rate": tuple(o.failure_rate for o in ops),
            "log_cost": tuple(price * r * o.tuple_size for o, r in zip(ops, rate, strict=True)),
            "state_cost": tuple(
                price * o.state_size if o.checkpoint_time is None else o.checkpoint_time
                for o in ops
            ),
            "replay_cost": tuple(o.cost * r for o, r in zip(ops, rate, strict=True)),
        }
        for key, value in derived.items():
            object.__setattr__(self, key, value)

    def __len__(self) -> int:
        return len(self.operators)

    @property
    def names(self) -> tuple[str, ...]:
        """The operators' names, in the order given."""
        return tuple(o.name for o in self.operators)

    @property
    def sources(self) -> tuple[int, ...]:
        """Operators fed by the source; they are anchors in every plan (section 3.1)."""
        return tuple(i for i in range(len(self)) if not self.parents[i])

    @property
    def shape(self) -> Shape:
        """``chain``, ``tree`` (no operator has two inputs; several roots allowed) or ``dag``."""
        if any(len(above) > 1 for above in self.parents):
            return "dag"
        if len(self.sources) == 1 and all(len(below) <= 1 for below in self.children):
            return "chain"
        return "tree"

    @property
    def min_overhead(self) -> float:
        """The infimum of the overhead of any plan: the sources' input logs and no checkpoints."""
        return sum(self.log_cost[i] for i in self.sources)

    @classmethod
    def from_mapping(cls, data: object) -> OperatorTopology:
        """The topology that a decoded JSON object describes; errors name the offending part.

        An operator without ``failure_rate`` may give ``parallelism`` instead: its rate is then
        ``parallelism`` times the topology's ``instance_failure_rate`` (section 4.1).

        >>> OperatorTopology.from_mapping({"input_rate": 1, "storage_cost": -1, "operators": []})
        Traceback (most recent call last):
        ...
        penstock.errors.SettingsError: storage_cost of the topology is -1: it must be a finite ...
        """
        if not isinstance(data, Mapping):
            raise GraphError("a topology is a JSON object with input_rate, storage_cost, operators")
        input_rate = _number(data, "input_rate", "the topology")
        storage_cost = _number(data, "storage_cost", "the topology")
        listed = data.get("operators")
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            raise GraphError("`operators` is missing, or not a list", field="operators")
        operators = tuple(_operator(item, k, data) for k, item in enumerate(listed))
        return cls(operators, input_rate, storage_cost)


def _operator(item: object, position: int, topology: Mapping[str, Any]) -> OperatorProfile:
    if not isinstance(item, Mapping):
        raise GraphError(f"operators[{position}] is not a JSON object")
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise GraphError(f"operators[{position}] has no name", field="name", position=position)
    inputs = item.get("inputs", [])
    if inputs is None:
        inputs = []
    if not isinstance(inputs, Sequence) or isinstance(inputs, str):
        raise GraphError(f"inputs of operator {name!r} is not a list of names", operator=name)
    for entry in inputs:
        if not isinstance(entry, str):
            raise GraphError(f"inputs of operator {name!r} has {entry!r}, which is not a name")
    where = f"operator {name!r}"
    values = {key: _number(item, key, where) for key in _ATTRIBUTES[:-1]}
    if item.get("failure_rate") is None and item.get("parallelism") is not None:
        values["failure_rate"] = _number(item, "parallelism", where) * _number(
            topology, "instance_failure_rate", "the topology"
        )
    else:
        values["failure_rate"] = _number(item, "failure_rate", where)
    for key in _MEASURED:
        if item.get(key) is not None:
            values[key] = _number(item, key, where)
    return OperatorProfile(name=name, inputs=tuple(inputs), **values)


def _number(data: Mapping[str, Any], key: str, where: str) -> float:
    if data.get(key) is None:
        raise SettingsError(f"{key} of {where} is missing", field=key, where=where)
    _check_number(data[key], key, where)
    return float(data[key])


def _check_number(value: object, key: str, where: str) -> None:
    good = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )
    if not good:
        raise SettingsError(
            f"{key} of {where} is {value!r}: it must be a finite number, zero or more",
            field=key,
            where=where,
            value=value,
        )


def _parents(operators: tuple[OperatorProfile, ...]) -> tuple[tuple[int, ...], ...]:
    index: dict[str, int] = {}
    for i, operator in enumerate(operators):
        if operator.name in index:
            raise GraphError(f"two operators are named {operator.name!r}", operator=operator.name)
        index[operator.name] = i
    parents: list[tuple[int, ...]] = []
    for operator in operators:
        for entry in operator.inputs:
            if entry not in index:
                raise GraphError(
                    f"operator {operator.name!r} has an unknown input {entry!r}",
                    operator=operator.name,
                    input=entry,
                )
        if len(set(operator.inputs)) != len(operator.inputs):
            raise GraphError(
                f"operator {operator.name!r} names an input twice: {list(operator.inputs)}",
                operator=operator.name,
            )
        parents.append(tuple(index[entry] for entry in operator.inputs))
    return tuple(parents)


def _topological(
    operators: tuple[OperatorProfile, ...],
    parents: tuple[tuple[int, ...], ...],
    children: list[list[int]],
) -> list[int]:
    waiting = [len(above) for above in parents]
    order = [i for i, count in enumerate(waiting) if count == 0]
    for i in order:  # grows while it is read
        for child in children[i]:
            waiting[child] -= 1
            if waiting[child] == 0:
                order.append(child)
    if len(order) < len(operators):
        # Going up from any operator that is left stays among those left, so it must close a ring.
        left = {i for i, count in enumerate(waiting) if count > 0}
        at, seen = min(left), []
        while at not in seen:
            seen.append(at)
            at = next(p for p in parents[at] if p in left)
        ring = [operators[i].name for i in reversed(seen[seen.index(at) :])]
        raise GraphError("the operators form a cycle: " + " -> ".join([*ring, ring[0]]), cycle=ring)
    return order
