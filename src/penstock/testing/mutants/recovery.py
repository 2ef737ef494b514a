"""Mutants of the controller: whom it restarts, where, and what it lets go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock.core.causal.graph import CausalGraph
from penstock.core.causal.reports import NodeReport, RecoveryPlan, Stored
from penstock.core.causal.times import Stamp
from penstock.core.control.recovery import (
    NEWEST,
    FenceHosts,
    FenceSources,
    FenceStore,
    PersistRecord,
    RecoveryEffect,
    RecoveryRecord,
)
from penstock.core.node.causal_effects import Flushed
from penstock.core.progress.marks import EPOCH_END
from penstock.testing.mutants.mutant import Flows, Mutant, Replacement, mutant

__all__ = ["RECOVERY"]

_MACHINE = "penstock.core.control.recovery:RecoveryMachine"
_PLAN = "penstock.core.causal.plan:plan"
_PLANS = "penstock.core.causal.plan"
_KNOWN = "penstock.core.causal.knowledge:Knowledge"
_GRAPH = "penstock.core.causal.graph:CausalGraph"
_HOLD = "penstock.core.control.global_hold:GlobalHold"

# -- fences and rounds -----------------------------------------------------------------------------


@mutant("the store refuses other incarnations (14)", f"{_MACHINE}._again", seed=2)
def no_store_fence(real: Replacement, *args: Any) -> list[RecoveryEffect]:
    return [effect for effect in real(*args) if not isinstance(effect, FenceStore)]


@mutant("failed until recovered (4)", f"{_MACHINE}.lost", seed=2)
def forgets_unfinished(
    real: Replacement, self: Any, nodes: Mapping[int, int]
) -> list[RecoveryEffect]:
    self.record = RecoveryRecord(self.record.incarnations, frozenset(), self.record.recoveries)
    effects: list[RecoveryEffect] = real(self, nodes)
    return effects


@mutant("failed until opened (4)", f"{_MACHINE}.recovered", seed=1250)
def recovered_too_soon(
    real: Replacement, self: Any, node: int, incarnation: int
) -> list[RecoveryEffect]:
    waiting, self._unopened = self._unopened, set()
    current, self._round = self._round, None
    effects: list[RecoveryEffect] = real(self, node, incarnation)
    self._unopened, self._round = waiting, current
    return effects


@mutant(
    "a rollback by hand goes back as far as was asked for",
    f"{_MACHINE}.rollback",
    flows=Flows.MIXED,
)
def forgets_limits(real: Replacement, self: Any, *args: Any) -> list[RecoveryEffect]:
    effects: list[RecoveryEffect] = real(self, *args)
    self.record = replace(self.record, limits={})
    return effects


# -- plans -----------------------------------------------------------------------------------------


@mutant("closure (6)", _PLAN, seed=953)
def no_closure(real: Replacement, *args: Any) -> RecoveryPlan:
    return replace(real(*args), joining=())


@mutant(
    "nothing lies beyond the end of a stream",
    f"{_PLANS}:_not_begun",
    flows=Flows.PLANNED,
    seed=2570165866,
)
def logs_begin_behind_the_end(real: Replacement, *args: Any) -> int:
    epoch: int = real(*args)
    return epoch + 1 if epoch == EPOCH_END else epoch


@mutant("all witnesses (5)", _PLAN, seed=19)
def direct_children_only(
    real: Replacement,
    graph: CausalGraph,
    failed: frozenset[int],
    reports: Mapping[int, NodeReport],
    stored: Mapping[int, Stored],
) -> RecoveryPlan:
    near = {
        node: replace(report, diffs=tuple(diff[:2] for diff in report.diffs))
        for node, report in reports.items()
    }
    found: RecoveryPlan = real(graph, failed, near, stored)
    return found


@mutant("the least position (5)", _PLAN, seed=53)
def starts_too_late(real: Replacement, *args: Any) -> RecoveryPlan:
    """Takes the greatest position of the children for the least."""
    found: RecoveryPlan = real(*args)
    starts = {}
    for node, start in found.starts.items():
        if start.checkpoint is None and start.positions and start.clock:
            top: Stamp = max(position.stamp for position in start.positions.values())
            later = [t for t in start.targets if t.stamp <= top]
            handled = {
                sender: position._replace(
                    stamp=max(
                        position.stamp,
                        *(t.made_from.stamp for t in later if t.made_from.node == sender),
                        (),
                    )
                )
                for sender, position in start.clock.items()
            }
            rest = tuple(t for t in start.targets if t.stamp > top or t.made_from.node < 0)
            start = replace(start, stamp=top, clock=handled, targets=rest)
        starts[node] = start
    return replace(found, starts=starts)


@mutant("a loop fails as one (20)", f"{_GRAPH}.closure", seed=12)
def loop_nodes_alone(real: Replacement, self: Any, nodes: Iterable[int]) -> frozenset[int]:
    return frozenset(nodes)


@mutant("a loop starts at one epoch (20)", _PLAN, seed=12)
def loop_epochs_apart(real: Replacement, graph: CausalGraph, *args: Any) -> RecoveryPlan:
    found: RecoveryPlan = real(CausalGraph(graph.kinds, graph.parents), *args)
    return found


@mutant(
    "at most once, a lost node starts after all that is known", _PLAN, flows=Flows.PROMISED, seed=61
)
def starts_in_the_past(real: Replacement, graph: CausalGraph, *args: Any) -> RecoveryPlan:
    found: RecoveryPlan = real(replace(graph, lossy=frozenset(), doubling=graph.untraced), *args)
    return found


@mutant(
    "at least once, a lost node is sent its open epochs again", _PLAN, flows=Flows.PROMISED, seed=18
)
def starts_in_the_present(real: Replacement, graph: CausalGraph, *args: Any) -> RecoveryPlan:
    found: RecoveryPlan = real(replace(graph, lossy=graph.untraced, doubling=frozenset()), *args)
    return found


# -- global checkpoints ----------------------------------------------------------------------------


@mutant(
    "a global checkpoint is complete before rows go on",
    f"{_HOLD}.flushed",
    flows=Flows.MIXED,
    seed=26,
)
def resumes_too_soon(real: Replacement, self: Any, node: int, said: Flushed) -> int | None:
    self._said = dict.fromkeys(self._nodes, said)
    found: int | None = real(self, node, said)
    return found


# -- the fence barrier, contradictions, starting together ------------------------------------------


@mutant("a plan waits for every survivor's report (3)", f"{_MACHINE}._maybe_plan", seed=2)
def plans_too_soon(real: Replacement, self: Any, current: Any) -> list[RecoveryEffect]:
    current.waiting.clear()
    effects: list[RecoveryEffect] = real(self, current)
    return effects


@mutant("a report answers the newest fence (3)", f"{_MACHINE}.reported", seed=82)
def takes_old_reports(
    real: Replacement, self: Any, node: int, round_: int, report: NodeReport
) -> list[RecoveryEffect]:
    effects: list[RecoveryEffect] = real(self, node, self.round, report)
    return effects


@mutant("edges open when all have started (15)", f"{_MACHINE}.started", seed=0)
def opens_too_soon(
    real: Replacement, self: Any, node: int, incarnation: int
) -> list[RecoveryEffect]:
    if self._round is not None:
        self._round.starting.clear()
    effects: list[RecoveryEffect] = real(self, node, incarnation)
    return effects


@mutant("the record is durable before anything else (17)", f"{_MACHINE}._again", seed=2)
def forgets_the_record(real: Replacement, *args: Any) -> list[RecoveryEffect]:
    return [effect for effect in real(*args) if not isinstance(effect, PersistRecord)]


@mutant("survivors hear of new incarnations (14)", f"{_MACHINE}._again", seed=3)
def fences_half(real: Replacement, self: Any, *args: Any) -> list[RecoveryEffect]:
    effects: list[RecoveryEffect] = real(self, *args)
    found: list[RecoveryEffect] = []
    for effect in effects:
        if isinstance(effect, FenceHosts) and len(effect.hosts) > 1:
            *told, left_out = effect.hosts
            self._round.unfenced.discard(left_out)
            self._round.waiting.discard(left_out)
            found.append(effect._replace(hosts=tuple(told)))
        else:
            found.append(effect)
    return found


@mutant(
    "what is durable is read when all hosts have heard (7)",
    f"{_MACHINE}._maybe_collect",
    flows=Flows.MIXED_ROUGH,
    seed=6,
)
def collects_too_soon(real: Replacement, self: Any, current: Any) -> list[RecoveryEffect]:
    unfenced, current.unfenced = current.unfenced, set()
    effects: list[RecoveryEffect] = real(self, current)
    current.unfenced = unfenced
    return effects


@mutant("a host that is gone need not hear", f"{_MACHINE}.host_gone", flows=Flows.ROUGH, seed=508)
def waits_for_hosts_that_are_gone(real: Replacement, *_: Any) -> list[RecoveryEffect]:
    return []


@mutant("logs of sources are fenced (14)", f"{_MACHINE}._maybe_collect", seed=1)
def no_source_fence(real: Replacement, *args: Any) -> list[RecoveryEffect]:
    return [effect for effect in real(*args) if not isinstance(effect, FenceSources)]


@mutant("a contradiction is answered", f"{_MACHINE}.contradicted", flows=Flows.PLANNED, seed=210)
def ignores_contradictions(real: Replacement, *_: Any) -> list[RecoveryEffect]:
    return []


@mutant(
    "with global checkpoints all start together", f"{_MACHINE}._again", flows=Flows.MIXED, seed=117
)
def one_starts_alone(real: Replacement, self: Any, *args: Any) -> list[RecoveryEffect]:
    together, self.all_together = self.all_together, False
    effects: list[RecoveryEffect] = real(self, *args)
    self.all_together = together
    return effects


@mutant(
    "what is durable is read for the newest fence (7)",
    f"{_MACHINE}.stored",
    flows=Flows.MIXED_ROUGH,
    seed=27,
)
def takes_what_was_stored_before(
    real: Replacement, self: Any, round_: int, *stored: Any
) -> list[RecoveryEffect]:
    effects: list[RecoveryEffect] = real(self, self.round, *stored)
    return effects


@mutant(
    "no node starts from before what may be forgotten (12)",
    f"{_MACHINE}.stored",
    flows=Flows.MIXED_ROUGH,
    seed=6,
)
def starts_behind_low_epochs(
    real: Replacement, self: Any, round_: int, stored: Mapping[int, Stored], gone: Any
) -> list[RecoveryEffect]:
    effects: list[RecoveryEffect] = real(self, round_, stored, {})
    return effects


@mutant(
    "where logs were dropped, older checkpoints are read, too (6)",
    f"{_MACHINE}._newest",
    flows=Flows.ROUGH_LONG,
    seed=10,
)
def reads_the_newest_only(real: Replacement, self: Any, node: int) -> int | None:
    logless, self._logless = self._logless, None
    found: int | None = real(self, node)
    self._logless = logless
    return found


@mutant(
    "a rollback by hand may go back to any checkpoint",
    f"{_MACHINE}._newest",
    flows=Flows.MIXED_LONG,
    seed=2,
)
def refuses_to_go_far_back(real: Replacement, self: Any, node: int) -> int | None:
    found: int | None = NEWEST if self.record.limits else real(self, node)
    return found


# -- inside the plan -------------------------------------------------------------------------------


@mutant(
    "a checkpoint is used if its log reaches the children (8)",
    f"{_PLANS}:_reaches",
    flows=Flows.MIXED,
    seed=4,
)
def any_checkpoint_will_do(real: Replacement, *_: Any) -> bool:
    return True


@mutant("determinants bind the order of replays (9)", f"{_PLANS}:_bind", seed=38)
def binds_nothing(real: Replacement, *args: Any) -> Stamp:
    graph, node, known, stored, top, after = args
    found: Stamp = real(graph, node, known, replace(stored, determinants=()), top, after)
    return found


@mutant(
    "a source reads on after what is known to be read (5)", f"{_PLANS}:_start_stateless", seed=1
)
def source_reads_all_again(real: Replacement, *args: Any) -> Any:
    start = real(*args)
    return replace(start, offset=0) if start.offset else start


@mutant(
    "an epoch that was completed below is completed first (2)",
    f"{_KNOWN}.observed",
    flows=Flows.MIXED,
    seed=33,
)
def observes_nothing(real: Replacement, *_: Any) -> int:
    return -1


@mutant(
    "steps of complete epochs say nothing of rows that came before them (5)",
    f"{_KNOWN}.handled",
    flows=Flows.PLANNED,
    seed=522249452,
)
def counts_steps_of_complete_epochs(real: Replacement, *args: Any) -> Stamp:
    found: Stamp = real(*args[:4])
    return found


def _as_facts_say(
    real: Replacement, self: Any, node: int, parent: int, up_to: Stamp, completed: int = -1
) -> Stamp:
    facts = [f for f in getattr(self, "believed", ()) if f.stamp <= up_to]
    about = [f.handled for f in facts if (f.node, f.parent) == (node, parent)]
    return max([real(self, node, parent, up_to, completed), *about])


@mutant(
    "facts name stamps that are not given away again, and say no more (5)",
    f"{_KNOWN}.learn",
    also={f"{_KNOWN}.handled": _as_facts_say},
    flows=Flows.MIXED_ROUGH_LONG,
    seed=194615040,
)
def believes_facts(
    real: Replacement, self: Any, report: NodeReport, completes: bool = True
) -> None:
    real(self, replace(report, facts=()), completes)
    self.believed = [*getattr(self, "believed", ()), *report.facts]


@mutant("inputs that led to known steps are not handled again (5)", f"{_KNOWN}.handled", seed=1)
def handled_nothing(real: Replacement, *_: Any) -> Stamp:
    return ()


# -- global checkpoints ----------------------------------------------------------------------------


@mutant("a hold ends where the last node is", f"{_HOLD}.flushed", flows=Flows.MIXED, seed=26)
def hold_skips_multiples(real: Replacement, self: Any, node: int, said: Flushed) -> int | None:
    found: int | None = real(self, node, said)
    if found is not None:
        self.epoch = found = found + self.every
    return found


RECOVERY: tuple[Mutant, ...] = tuple(one for one in globals().values() if isinstance(one, Mutant))
