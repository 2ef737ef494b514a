"""The planner: where to log and how often to checkpoint, under an overhead budget.

Pure: a described topology and a budget in, a plan out. Follows "FastRecover" (S. Yaduvanshi, 2016)
and goes beyond it: exact optima without a discretised budget, DAGs, and a bound with each plan.
"""

from penstock.core.plan.cost import Configuration
from penstock.core.plan.failure import RecoveryCost, recover
from penstock.core.plan.solve import METHODS, Method, Plan, solve
from penstock.core.plan.topology import OperatorProfile, OperatorTopology

__all__ = [
    "METHODS",
    "Configuration",
    "Method",
    "OperatorProfile",
    "OperatorTopology",
    "Plan",
    "RecoveryCost",
    "recover",
    "solve",
]
