"""Rollback: spans, regimes, the largest consistent rollback, low-watermarks and what they free.

Pure: metadata in, spans and decisions out. Follows "Falkirk Wheel" (SoCC 2021) and goes beyond it:
causal nodes that can replay do not force their children back.
"""

from penstock.core.rollback.cascades import Cascade, StageEdge, Trouble, cascades
from penstock.core.rollback.metadata import Edge, NodeMetadata, Offer, RollbackGraph, Witness
from penstock.core.rollback.monitor import Decisions, SpanMonitor
from penstock.core.rollback.solver import Cause, Reason, Rollback, solve
from penstock.core.rollback.spans import EMPTY, TOP, NumberedTime, Span

__all__ = [
    "EMPTY",
    "TOP",
    "Cascade",
    "Cause",
    "Decisions",
    "Edge",
    "NodeMetadata",
    "NumberedTime",
    "Offer",
    "Reason",
    "Rollback",
    "RollbackGraph",
    "Span",
    "SpanMonitor",
    "StageEdge",
    "Trouble",
    "Witness",
    "cascades",
    "solve",
]
