"""Where a flow keeps what its recoveries need."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.causal_graph import loop_units
from penstock.engine.settings import RunSettings
from penstock.engine.storage import Storage
from penstock.engine.store import FlowStore
from penstock.physical import PhysicalPlan

__all__ = ["RecoveryPlace", "recovery_place"]

log = logging.getLogger(__name__)


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


def recovery_place(
    plan: PhysicalPlan, settings: RunSettings, store: FlowStore | None, one_machine: bool
) -> RecoveryPlace | None:
    """The flow's store, or a directory of this machine's; None: the flow has no recovery."""
    if settings.recovery == "none" or settings.progress == "tracked":
        return None
    if len(set(loop_units(plan).values())) > 1:
        log.warning("a flow with several separate loops cannot recover from a lost host")
        return None
    unrepeatable = [s.name for c in plan.chains for s in c.stages if not s.operator.repeatable]
    if unrepeatable:
        log.warning(
            "stage %s cannot be repeated, so this flow cannot recover from a lost host: let it ask "
            "for what varies through ctx.now(), ctx.random() or ctx.call()",
            ", ".join(unrepeatable),
        )
        return None
    if store is not None:
        return RecoveryPlace(store.storage.directory or store.storage, sync=True)
    if not one_machine:
        log.warning(
            "without checkpointLocation this flow cannot recover from a lost host: give a "
            "directory that the executors share"
        )
        return None
    temporary = tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)
    return RecoveryPlace(Path(temporary.name), sync=False, temporary=temporary)
