"""One entrance to all methods: a topology and a budget in, a plan out.

Decides which solver fits the topology's shape, and what bound goes with the plan; reads no files
and prints nothing.

Laws
  * A feasible plan's ``overhead`` is at most the budget, and ``bound ≤ recovery_time``.
  * ``bound`` holds for every plan of the same freedom: one frequency per segment (RSFS), or for
    ``relaxed`` whole multiples inside a segment (RSRFS).
  * ``exact`` is never worse than ``dp``, ``nsegments`` and ``1segment``; on chains and trees, and
    on DAGs of up to 15 operators, its bound is its recovery time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from penstock.core.plan.baselines import n_segments, n_segments_min_overhead, one_segment
from penstock.core.plan.chain_dp import chain_dp_arrays
from penstock.core.plan.chain_exact import solve_chain
from penstock.core.plan.cost import (
    Configuration,
    best_configuration,
    bits,
    overhead,
    recovery_time,
    segment_members,
)
from penstock.core.plan.dag import forests, solve_dag
from penstock.core.plan.dual import maximise
from penstock.core.plan.forest import Forest
from penstock.core.plan.relax import relax
from penstock.core.plan.topology import OperatorTopology
from penstock.core.plan.tree_dp import tree_dp
from penstock.core.plan.tree_exact import solve_tree
from penstock.errors import SettingsError

__all__ = ["METHODS", "Method", "Plan", "relaxed_bound", "solve"]

Method = Literal["exact", "dp", "relaxed", "nsegments", "1segment"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True, slots=True)
class Plan:
    """Anchors and frequencies for a topology, with what they cost; or why there are none.

    ``min_overhead`` is the infimum of the budgets that the method can work with: a budget must lie
    above it (or on it, where nothing needs a checkpoint).
    """

    topology: OperatorTopology
    method: Method
    max_overhead: float
    min_overhead: float
    configuration: Configuration | None
    overhead: float
    recovery_time: float
    bound: float
    reason: str = ""

    @property
    def feasible(self) -> bool:
        """Whether there is a plan within the budget."""
        return self.configuration is not None

    @property
    def anchors(self) -> tuple[str, ...]:
        """The names of the operators that log their input, in topological order."""
        if self.configuration is None:
            return ()
        chosen = self.configuration.anchors
        return tuple(self.topology.names[i] for i in self.topology.order if i in chosen)

    @property
    def frequency(self) -> dict[str, float]:
        """Checkpoints per unit of time and operator; ``inf`` where they are free."""
        if self.configuration is None:
            return {}
        return dict(zip(self.topology.names, self.configuration.frequency, strict=True))

    @property
    def segments(self) -> tuple[tuple[str, ...], ...]:
        """The operators that recover together, by name."""
        if self.configuration is None:
            return ()
        found = segment_members(self.topology, self.configuration.anchors)
        return tuple(tuple(self.topology.names[i] for i in part) for part in found)


def solve(
    topology: OperatorTopology,
    max_overhead: float,
    method: Method = "exact",
    *,
    steps: int | None = None,
    frequency_max: float | None = None,
) -> Plan:
    """The plan that ``method`` finds within the budget ``max_overhead``.

    ``steps`` is the paper's Z (``dp`` only); ``frequency_max`` its F_max (``dp`` on trees), by
    default twice the highest frequency of the exact plan.

    >>> from penstock.core.plan.topology import OperatorProfile
    >>> topology = OperatorTopology(
    ...     (
    ...         OperatorProfile("parse", 0.1, 1e-5, 100.0, 1.0, 0.2),
    ...         OperatorProfile("count", 1.0, 1e-5, 900.0, 1.0, 0.2, inputs=("parse",)),
    ...     ),
    ...     input_rate=1000.0,
    ...     storage_cost=1e-5,
    ... )
    >>> plan = solve(topology, max_overhead=0.05)
    >>> plan.anchors, round(plan.overhead, 6), plan.bound == plan.recovery_time
    (('parse', 'count'), 0.05, True)
    >>> solve(topology, max_overhead=0.01).feasible
    False
    """
    if not (max_overhead >= 0.0 and math.isfinite(max_overhead)):
        raise SettingsError(
            f"max_overhead is {max_overhead!r}: it must be a finite number, zero or more"
        )
    if method not in METHODS:
        raise SettingsError(f"unknown method {method!r}: one of {', '.join(METHODS)}")
    if steps is not None and steps < 1:
        raise SettingsError(f"steps is {steps}: it must be at least 1")
    if method == "dp" and topology.shape == "dag":
        raise SettingsError(
            "method dp is for chains and trees; this topology has operators with several inputs. "
            "Use exact"
        )
    least = n_segments_min_overhead(topology) if method == "nsegments" else topology.min_overhead
    optimum, bound = _exact(topology, max_overhead)
    found, reason = optimum, ""
    if optimum is not None:
        if method == "dp":
            found = _dp(topology, max_overhead, steps, frequency_max, optimum)
            reason = "" if found else "no plan on this grid: more steps are needed"
        elif method == "relaxed":
            found = relax(topology, optimum, max_overhead)
            bound = relaxed_bound(topology, max_overhead)
        elif method == "nsegments":
            found = n_segments(topology, max_overhead)
        elif method == "1segment":
            found = one_segment(topology, max_overhead)
    if found is None:
        reason = reason or "the budget does not exceed the cost of the input logs"
        return Plan(topology, method, max_overhead, least, None, math.nan, math.inf, bound, reason)
    attained = recovery_time(topology, found)
    return Plan(
        topology=topology,
        method=method,
        max_overhead=max_overhead,
        min_overhead=least,
        configuration=found,
        overhead=overhead(topology, found),
        recovery_time=attained,
        bound=min(bound, attained),
        reason=reason,
    )


def _exact(topology: OperatorTopology, max_overhead: float) -> tuple[Configuration | None, float]:
    """The best plan under RSFS and the bound on all such plans."""
    room = max_overhead - topology.min_overhead
    if room < 0.0:
        return None, math.inf
    # An input log that costs nothing is always worth having, and at the least overhead there is
    # nothing else to decide.
    anchors = frozenset(i for i, log in enumerate(topology.log_cost) if log == 0.0)
    anchors |= frozenset(topology.sources)
    bound = 0.0
    proven = True
    if room > 0.0:
        if topology.shape == "chain":
            anchors, bound = solve_chain(topology, max_overhead)
        else:
            solver = solve_tree if topology.shape == "tree" else solve_dag
            solution = solver(topology, max_overhead)
            anchors, bound = frozenset(bits(solution.anchors)), solution.bound
            proven = solution.proven
    configuration = best_configuration(topology, anchors, max_overhead)
    if configuration is None:
        return None, math.inf
    # The unspent rounding reserve makes the plan a hair slower than the value proven for it.
    return configuration, recovery_time(topology, configuration) if proven else bound


def _dp(
    topology: OperatorTopology,
    max_overhead: float,
    steps: int | None,
    frequency_max: float | None,
    optimum: Configuration,
) -> Configuration | None:
    if topology.shape == "chain":
        return chain_dp_arrays(topology, max_overhead, steps or 60)
    if frequency_max is None:
        finite = [eta for eta in optimum.frequency if 0.0 < eta < math.inf]
        frequency_max = 2.0 * max(finite, default=1.0)
    return tree_dp(topology, max_overhead, steps or max(20, len(topology) + 10), frequency_max)


def relaxed_bound(topology: OperatorTopology, max_overhead: float) -> float:
    """A bound on every plan under RSRFS: as if each operator chose its frequency freely."""
    choices: Sequence[Sequence[int | None]] = (
        forests(topology)
        if topology.shape == "dag"
        else [[above[0] if above else None for above in topology.parents]]
    )
    best, t = 0.0, 1.0
    for parent in choices:
        forest = Forest(topology, parent, synchronised=False)
        dual = maximise(partial(forest.curve, max_overhead=max_overhead), t)
        best, t = max(best, dual.bound), dual.t
    return best
