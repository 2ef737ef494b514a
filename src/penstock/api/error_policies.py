"""What happens when a stage raises: the choices, and what they do to a plan."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.stage import RESTART, SKIP, STOP, Stage
from penstock.errors import SettingsError
from penstock.operators.base import SourceOperator
from penstock.operators.skipping import ERRORS, Skipping, cannot_skip

__all__ = ["POLICIES", "chosen_policy", "with_policies"]

POLICIES = (STOP, RESTART, SKIP)


def chosen_policy(stage: Stage, policy: str) -> str:
    """A stage's policy, refused if it is none or if the stage cannot have it."""
    if policy not in POLICIES:
        wanted = " or ".join(map(repr, POLICIES))
        raise SettingsError(f"onError: the policy is {wanted}, got {policy!r}", stage=stage.name)
    reason = _refusal(stage, policy)
    if reason is not None:
        raise SettingsError(f"onError: stage {stage.name!r} cannot {policy}: {reason}")
    if stage.on_error == SKIP and policy != SKIP:
        raise SettingsError(
            f"onError: stage {stage.name!r} skips already, and errors() may be in use"
        )
    return policy


def with_policies(stages: Sequence[Stage], default: str) -> None:
    """Let every stage of a plan have its policy: its own, or the flow's where it can have that."""
    for stage in stages:
        if stage.on_error is None:
            stage.on_error = default if _refusal(stage, default) is None else STOP
            if stage.on_error == SKIP:
                stage.outputs = (*stage.outputs, ERRORS)
        if stage.on_error == SKIP:
            stage.operator = Skipping(stage.operator, len(stage.outputs) - 1)


def _refusal(stage: Stage, policy: str) -> str | None:
    operator = stage.operator
    if policy == SKIP:
        return cannot_skip(operator)
    if policy == RESTART:
        source = operator.source if isinstance(operator, SourceOperator) else None
        if operator.on_driver or (source is not None and source.on_driver):
            return "it runs in the driver's own process, which ends with the flow"
    return None
