"""Random topologies for the planner's benchmark, as section 4.1 of "FastRecover" draws them.

Decides attributes from a seed; never measures. The unit of time is the minute, of size the
kilobyte. The paper does not print its storage cost: with 5e-5 min/KB the chains become infeasible
for NSegments at about the published rate, the trees' frequency range needs 5e-7 min/KB.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock.core.plan.topology import OperatorProfile, OperatorTopology

__all__ = [
    "CHAIN_STORAGE_COST",
    "TREE_STORAGE_COST",
    "Draw",
    "random_chain",
    "random_dag",
    "random_tree",
]

CHAIN_STORAGE_COST = 5e-5
TREE_STORAGE_COST = 5e-7


@dataclass(frozen=True, slots=True)
class Draw:
    """The ranges that attributes are drawn from; the defaults are table 4.1's."""

    selectivity: tuple[float, float] = (0.1, 1.0)
    cost: float = 1e-5
    state_size: tuple[float, float] = (10_000.0, 20_000.0)
    tuple_size: float = 1.0
    parallelism: tuple[int, int] = (2, 6)

    def operator(
        self, rng: random.Random, base: float, k: int, inputs: tuple[str, ...]
    ) -> OperatorProfile:
        """One operator; ``base`` is the topology's failure rate per four instances."""
        return OperatorProfile(
            name=f"op{k + 1}",
            selectivity=rng.uniform(*self.selectivity),
            cost=self.cost,
            state_size=rng.uniform(*self.state_size),
            tuple_size=self.tuple_size,
            failure_rate=base * rng.randint(*self.parallelism) / 4.0,
            inputs=inputs,
        )


def _base(rng: random.Random) -> float:
    """A failure rate from a Gaussian with mean 0.1 and variance 0.03, redrawn until positive."""
    while True:
        value = rng.gauss(0.1, 0.03**0.5)
        if value > 0.001:
            return value


def random_chain(
    rng: random.Random,
    n: int,
    input_rate: float = 3000.0,
    draw: Draw | None = None,
    storage_cost: float = CHAIN_STORAGE_COST,
) -> OperatorTopology:
    """A chain of n operators."""
    draw = draw or Draw()
    base = _base(rng)
    operators = tuple(draw.operator(rng, base, k, (f"op{k}",) if k else ()) for k in range(n))
    return OperatorTopology(operators, input_rate, storage_cost)


def random_tree(
    rng: random.Random,
    n: int,
    input_rate: float = 1000.0,
    draw: Draw | None = None,
    storage_cost: float = TREE_STORAGE_COST,
    fan_out: int = 3,
) -> OperatorTopology:
    """A tree of n operators, none with more than ``fan_out`` children."""
    draw = draw or Draw()
    base = _base(rng)
    free = [0] * n
    operators = []
    for k in range(n):
        inputs: tuple[str, ...] = ()
        if k:
            parent = rng.choice([p for p in range(k) if free[p] < fan_out])
            free[parent] += 1
            inputs = (f"op{parent + 1}",)
        operators.append(draw.operator(rng, base, k, inputs))
    return OperatorTopology(tuple(operators), input_rate, storage_cost)


def random_dag(
    rng: random.Random,
    n: int,
    input_rate: float = 1000.0,
    draw: Draw | None = None,
    storage_cost: float = TREE_STORAGE_COST,
    second_input: float = 0.3,
) -> OperatorTopology:
    """A DAG of n operators: each has one input, and a second one with the given probability."""
    draw = draw or Draw()
    base = _base(rng)
    operators = []
    for k in range(n):
        inputs: tuple[str, ...] = ()
        if k:
            count = min(k, 1 + (rng.random() < second_input))
            near = range(max(0, k - 8), k)
            inputs = tuple(f"op{p + 1}" for p in sorted(rng.sample(near, count)))
        operators.append(draw.operator(rng, base, k, inputs))
    return OperatorTopology(tuple(operators), input_rate, storage_cost)
