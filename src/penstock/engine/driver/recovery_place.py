"""Where a flow keeps what its recoveries need."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.api.regimes import Replicated
from penstock.core.delivery.guarantees import Guarantee
from penstock.engine.settings import RunSettings
from penstock.engine.store.description import FlowDescription
from penstock.engine.store.flow_store import FlowStore
from penstock.errors import SettingsError
from penstock.planning.physical import PhysicalPlan
from penstock.storage import Storage

__all__ = ["RecoveryPlace", "check_kept", "check_state", "recovery_place"]

log = logging.getLogger(__name__)

_ANEW = "or begin anew, with a new checkpointLocation and empty output"


@dataclass(frozen=True)
class RecoveryPlace:
    """A place that all hosts can reach."""

    directory: Path | Storage
    sync: bool
    """Whether what is in it must outlive the machine, not only processes."""
    temporary: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """The flow is over: a directory that was made for it goes."""
        if self.temporary is not None:
            self.temporary.cleanup()


def check_state(plan: PhysicalPlan, settings: RunSettings, store: FlowStore | None) -> None:
    """Refuse a flow that would lose state without a word when it is started again.

    Its sources would go on from their offsets while its stages began with nothing.  Without a
    store no run can go on with it, and where rows may be lost state may be, too.
    """
    prevented = _prevents_recovery(plan, settings)
    if store is None or prevented is None:
        return
    why, remedy = prevented
    before = FlowDescription.read(store.storage)
    if before is not None and any(chain.keeps_state for chain in before.chains):
        raise SettingsError(
            f"checkpointLocation {store.storage} holds state of an earlier run, and {why}: this "
            f"run would neither use nor keep it. To go on with that run, {remedy}; {_ANEW}",
            path=str(store.storage),
        )
    keeping = _keeping(plan)
    if keeping:
        raise SettingsError(
            f"{why}, so the state of {_stages(keeping)} would be lost when the flow is started "
            f"again with checkpointLocation {store.storage}, while its sources go on: "
            f"exactly-once cannot be promised. {remedy[0].upper()}{remedy[1:]}; or leave "
            "checkpointLocation out, if no later run will go on with this one; or ask for "
            'guarantee="at-most-once"',
            stages=keeping,
        )


def check_kept(plan: PhysicalPlan, settings: RunSettings, store: FlowStore | None) -> None:
    """Refuse to go on, with recovery, with a run of which no state was kept.

    Called where the store is known to have epochs of an earlier run.
    """
    keeping = _keeping(plan)
    if store is None or not keeping or _prevents_recovery(plan, settings) is not None:
        return
    if FlowDescription.read(store.storage) is None:
        raise SettingsError(
            f"the flow has run with checkpointLocation {store.storage} without recovery, and "
            f"nothing was kept of the state of {_stages(keeping)}: what came before would be "
            f'missing. Go on without recovery and with guarantee="at-most-once", {_ANEW}',
            path=str(store.storage),
        )


def _keeping(plan: PhysicalPlan) -> list[str]:
    """The stages whose state is promised to outlive a restart."""
    return [
        stage.name
        for chain in plan.chains
        if chain.guarantee is not Guarantee.AT_MOST_ONCE
        for stage in chain.stages
        if stage.operator.state not in ("none", "epoch")
    ]


def _stages(names: list[str]) -> str:
    return ("stage " if len(names) == 1 else "stages ") + ", ".join(map(repr, names))


def _prevents_recovery(plan: PhysicalPlan, settings: RunSettings) -> tuple[str, str] | None:
    """What keeps a flow from being recovered, and what to do about it; None: nothing does."""
    if settings.recovery == "none":
        return 'with recovery="none" no state is kept', 'leave out recovery="none"'
    if settings.progress == "tracked":
        return 'with progress="tracked" no state is kept', 'leave out progress="tracked"'
    unrepeatable = [s.name for c in plan.chains for s in c.stages if not s.operator.repeatable]
    if unrepeatable:
        return (
            f"{_stages(unrepeatable)} cannot be repeated",
            "let it ask for what varies through ctx.now(), ctx.random() or ctx.call(), and leave "
            "out repeatable = False",
        )
    return None


def recovery_place(
    plan: PhysicalPlan, settings: RunSettings, store: FlowStore | None, one_machine: bool
) -> RecoveryPlace | None:
    """The flow's store, or a directory of this machine's; None: the flow has no recovery."""
    prevented = _prevents_recovery(plan, settings)
    if prevented is not None:
        why = f"{prevented[0]}, so this flow cannot recover from a lost host: {prevented[1]}"
        _refuse_replicated(plan, why)
        if settings.recovery != "none":  # else it was asked for
            log.warning("%s", why)
        return None
    if store is not None:
        return RecoveryPlace(store.storage.directory or store.storage, sync=True)
    if not one_machine:
        why = (
            "without checkpointLocation this flow cannot recover from a lost host: give a "
            "directory that the executors share"
        )
        _refuse_replicated(plan, why)
        log.warning("%s", why)
        return None
    temporary = tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)
    Path(temporary.name, "sources").mkdir()  # as in any store; its users do not make it
    return RecoveryPlace(Path(temporary.name), sync=False, temporary=temporary)


def _refuse_replicated(plan: PhysicalPlan, why: str) -> None:
    """Who has asked for replicas must not find out when a host is lost that there are none."""
    stages = [s.name for c in plan.chains if isinstance(c.regime, Replicated) for s in c.stages]
    if stages:
        raise SettingsError(
            f"{', '.join(stages)}: Replicated was asked for, and cannot be had. {why}",
            stages=stages,
        )
