"""What is promised of every stage of a flow: the user's wishes, put together and checked.

The rules are :mod:`penstock.core.delivery.guarantees`'; this only tells them about the flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.base import Sink
from penstock.core.delivery.guarantees import Guarantee, Member, guarantee_named, resolve
from penstock.operators.base import SourceOperator

if TYPE_CHECKING:
    from penstock.flow import Flow

__all__ = ["guarantees_of"]


def guarantees_of(flow: Flow, default: str | Guarantee) -> dict[str, Guarantee]:
    """The guarantee of every stage; wishes that do not go together are refused with the reason."""
    children: dict[str, list[str]] = {stage.name: [] for stage in flow.stages}
    for stage in flow.stages:
        for source in stage.inputs:
            children[source.stage.name].append(stage.name)
        if stage.follows is not None:  # a persisted stream: the rows go on behind its sink
            children[stage.follows.name].append(stage.name)
    members = {}
    for stage in flow.stages:
        operator = stage.operator
        members[stage.name] = Member(
            stage.name,
            tuple(children[stage.name]),
            stage.guarantee,
            replayable=not isinstance(operator, SourceOperator) or operator.source.replayable,
            idempotent=not isinstance(operator, Sink) or operator.idempotent,
        )
    return resolve(guarantee_named(default), members)
