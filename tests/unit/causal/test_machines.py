"""The machines of a node and of the controller, event by event."""

import pytest

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import DiffLink, completion, origin
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.reports import Cut, NodeReport, Saved, Start, Stored, Target
from penstock.core.control.recovery import (
    CollectStored,
    FenceHosts,
    FenceSources,
    FenceStore,
    GiveUp,
    OpenEdge,
    PersistRecord,
    ReadStates,
    RecoveryEffect,
    RecoveryMachine,
    RecoveryRecord,
    Refuse,
    StartNode,
    Widen,
)
from penstock.core.node.causal import CausalMachine
from penstock.core.node.causal_effects import (
    CausalEffect,
    Checkpoint,
    ReadAgain,
    Recall,
    Restated,
    ResumeReading,
    Retire,
    StoreCut,
    StoreDeterminants,
    TakeCheckpoint,
    TellOpened,
    TellRecovered,
    TellReport,
)
from penstock.core.node.messages import (
    DATA,
    MARK,
    Complete,
    Deliver,
    EndStep,
    Finish,
    Message,
    Send,
)
from penstock.core.node.options import NodeOptions, Outlet, Wiring
from penstock.core.node.source import CausalSource
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time
from penstock.errors import GraphError, InvariantError

EPOCH = Time.root(0)


def message(
    stamp: int, sender: int = 1, kind: int = DATA, epoch: int = 0, **parts: object
) -> Message:
    values: dict[str, object] = {
        "kind": kind, "link": sender, "sender": sender, "target": 5, "incarnation": 0,
        "sequence": stamp, "time": Time.root(epoch), "payload": f"{sender}:{stamp}",
        "stamp": (stamp,), "diff": (DiffLink(sender, (stamp,), epoch),),
    }  # fmt: skip
    return Message(**{**values, **parts})  # type: ignore[arg-type]


def node(
    start: Start | None = None,
    checkpoint: Checkpoint | None = None,
    incarnation: int = 0,
    incarnations: dict[int, int] | None = None,
    **options: bool,
) -> CausalMachine:
    outlets = (Outlet(9, (7, 8)),)
    wiring = Wiring(5, {1: [1], 2: [2]}, outlets, incarnation, incarnations or {})
    return CausalMachine(wiring, NodeOptions(**options), start, checkpoint)  # type: ignore[arg-type]


def handle(machine: CausalMachine, incoming: Message, *targets: int) -> list[Message]:
    """Let a message through, with output to some children; give what was sent."""
    return perform(machine, machine.received(incoming), targets)


def perform(
    machine: CausalMachine, effects: list[CausalEffect], targets: tuple[int, ...] = ()
) -> list[Message]:
    sent = []
    queue = list(effects)
    while queue:
        effect = queue.pop(0)
        if isinstance(effect, Deliver) and targets:
            machine.produced(9, [(t, effect.payload, 8) for t in targets], effect.time)
        elif isinstance(effect, EndStep):
            queue = machine.end_step() + queue
        elif isinstance(effect, Complete):
            queue = machine.completed(effect.epoch, {9: None}, 0) + queue
        elif isinstance(effect, Send):
            sent.append(effect.message)
    return sent


def test_a_step_is_handled_when_it_is_whole() -> None:
    machine = node()
    assert machine.received(message(1, more=True)) == []
    effects = machine.received(message(1, sequence=2))
    assert [type(effect) for effect in effects] == [Deliver, Deliver, EndStep]


def test_before_its_end_a_node_with_state_saves_what_a_later_run_can_go_on_with() -> None:
    machine = node(stateful=True, clean=True, resumable=True)
    for sender in (1, 2):
        handle(machine, message(1, sender))
    handle(machine, message(2, 1, MARK))
    handle(machine, message(3, 1, MARK, EPOCH_END))  # one has ended: that is not in it
    (complete,) = machine.received(message(2, 2, MARK))
    assert complete == Complete(0, None, 0)
    machine.completed(0, {9: None}, 0)
    effects = machine.received(message(3, 2, MARK, EPOCH_END))
    assert [type(effect) for effect in effects] == [TakeCheckpoint, Complete]
    taken = effects[0]
    assert isinstance(taken, TakeCheckpoint)
    assert taken.last
    report = taken.checkpoint.report
    assert (report.completed, report.newest, report.rows) == (0, 0, 0)
    assert [diff[0].epoch for diff in report.diffs] == [0, 0, 0, 0]
    assert all(position.epoch == 0 for position in report.clock.values())


@pytest.mark.parametrize("options", [{"resumable": True}, {"stateful": True}], ids=str)
def test_a_node_that_no_later_run_goes_on_with_ends_without_a_checkpoint(
    options: dict[str, bool],
) -> None:
    machine = node(**options)
    for sender in (1, 2):
        effects = machine.received(message(1, sender, MARK, EPOCH_END))
    assert effects == [Complete(EPOCH_END, None, 0)]


def test_diffs_do_not_grow_with_the_number_of_shards() -> None:
    for shards in (2, 8, 32):
        children = tuple(range(100, 100 + shards))
        machine = CausalMachine(
            Wiring(5, {1: list(range(10, 10 + shards))}, (Outlet(9, children),))
        )
        incoming = message(1, sender=10, link=1)
        machine.received(incoming)
        machine.produced(9, [(child, "rows", 8) for child in children], EPOCH)
        sent = [effect.message for effect in machine.end_step() if isinstance(effect, Send)]
        assert len(sent) == shards
        assert {len(m.diff) for m in sent} == {2}


def test_messages_of_other_incarnations_are_refused_on_both_sides() -> None:
    machine = node(incarnation=3, incarnations={1: 2})
    assert machine.received(message(1, incarnation=1, target_incarnation=3)) == []
    assert machine.received(message(1, incarnation=2, target_incarnation=2)) == []
    assert machine.received(message(1, incarnation=2, target_incarnation=3)) != []


def test_a_fence_closes_the_edge_and_an_open_sends_again_after_the_position() -> None:
    machine = node()
    assert [m.stamp for m in handle(machine, message(1), 7, 8)] == [(1,), (1,)]
    [told] = machine.fence({7: 4}, 1)
    assert isinstance(told, TellReport)
    assert told.report.clock[1] == Position((1,), -1)
    assert [m.target for m in handle(machine, message(2), 7, 8)] == [8]
    effects = machine.open(7, 4, Position((), -1))
    again = [effect.message for effect in effects if isinstance(effect, Send)]
    assert [(m.stamp, m.sequence, m.target_incarnation) for m in again] == [
        ((1,), 1, 4),
        ((2,), 2, 4),
    ]
    assert effects[-1] == TellOpened(7, 4)
    assert machine.open(7, 4, Position((), -1)) == []


def test_a_fence_drops_half_a_step() -> None:
    machine = node()
    machine.received(message(1, more=True))
    machine.fence({1: 1}, 1)
    effects = machine.received(message(1, incarnation=1))
    assert [type(effect) for effect in effects] == [Deliver, EndStep]


def test_a_node_that_is_fenced_itself_retires() -> None:
    assert node().fence({5: 1}, 1) == [Retire()]


def restarted(*targets: Target, **options: bool) -> CausalMachine:
    clock = {1: Position((), -1), 2: Position((), -1)}
    positions = {7: Position((1,), -1), 8: Position((6,), -1)}
    start = Start(5, None, (1,), -1, clock, positions, targets, top=(6,))
    return node(start, **options)


def test_a_replay_hits_its_targets_and_sends_nothing_before_the_edges_are_open() -> None:
    machine = restarted(Target((6,), DiffLink(2, (2,), 0)))
    assert machine.begin() == []
    assert handle(machine, message(1), 7) == []
    assert handle(machine, message(1, sender=2), 7, 8) == []
    assert machine.replaying
    assert handle(machine, message(2, sender=2), 7, 8) == []
    assert not machine.replaying
    to_7 = perform(machine, machine.open(7, 0, Position((1,), -1)))
    assert [(m.stamp, m.payload) for m in to_7] == [((2,), "2:1"), ((6,), "2:2"), ((7,), "1:1")]
    to_8 = perform(machine, machine.open(8, 0, Position((6,), -1)))
    # It has 2:2, and would have had 2:1 before it.
    assert [(m.stamp, m.payload) for m in to_8] == [((7,), "1:1")]


def test_a_node_says_when_it_has_recovered() -> None:
    assert restarted().begin() == [TellRecovered()]


def at_epoch(epoch: int, checkpoint: Checkpoint | None = None, **options: bool) -> CausalMachine:
    clock = {1: Position((4,), epoch), 2: Position((6,), epoch)}
    positions = {7: Position((1,), epoch), 8: Position((3,), epoch + 2)}
    start = Start(5, None, (1,), epoch, clock, positions, top=(3,))
    return node(start, checkpoint, **options)


def stated(sender: int, epoch: int, watermark_us: int | None, sequence: int = 1) -> Message:
    mark = message(sequence, sender, MARK, epoch, watermark_us=watermark_us, payload=None)
    return mark._replace(stamp=(), diff=())


def test_a_restarted_node_waits_until_every_sender_has_restated_its_watermark() -> None:
    machine = at_epoch(3)
    assert machine.begin() == []
    assert machine.received(stated(1, 3, 30)) == []
    assert machine.received(message(2, epoch=4)._replace(stamp=(5,))) == []
    assert machine.received(stated(2, 3, 20)) == [Restated(3, 20)]
    effects = machine.restated({9: 20})
    assert [type(effect) for effect in effects] == [TellRecovered, Deliver, EndStep]


def test_a_child_is_told_of_the_watermark_at_its_epoch_when_that_is_certain() -> None:
    machine = at_epoch(3)
    machine.received(stated(1, 3, 30))
    machine.received(stated(2, 3, 20))
    machine.restated({9: 20})
    [to_7] = perform(machine, machine.open(7, 0, Position((1,), 3)))
    assert (to_7.kind, to_7.time, to_7.watermark_us) == (MARK, Time.root(3), 20)
    assert perform(machine, machine.open(8, 0, Position((3,), 5))) == []  # 4 may still come
    assert handle(machine, message(2, kind=MARK, epoch=4, watermark_us=40)) == []
    sent = handle(machine, message(2, sender=2, kind=MARK, epoch=7, watermark_us=70))
    assert [(m.target, m.time.epoch) for m in sent] == [(7, 4)]
    sent = handle(machine, message(3, kind=MARK, epoch=6, watermark_us=60))
    assert [(m.target, m.time.epoch) for m in sent] == [(7, 6), (8, 5), (8, 6)]


def test_a_live_node_ignores_what_is_restated() -> None:
    machine = node()
    handle(machine, message(1, kind=MARK, epoch=4))
    assert machine.received(stated(1, 4, 9, sequence=2)) == []


def test_a_node_that_had_finished_finishes_again() -> None:
    machine = at_epoch(EPOCH_END)
    machine.received(stated(1, EPOCH_END, 30))
    machine.received(stated(2, EPOCH_END, 20))
    assert machine.restated({9: 20}) == [Finish(), TellRecovered()]


def test_only_a_node_with_state_remembers_a_greater_watermark() -> None:
    report = NodeReport(5, (1,), 3, floors={7: Floor(), 8: Floor()}, watermark_us=25)
    for stateful, found in ((False, 20), (True, 25)):
        machine = at_epoch(3, stateful=stateful, checkpoint=Checkpoint(report, {}))
        machine.received(stated(1, 3, 30))
        assert machine.received(stated(2, 3, 20)) == [Restated(3, found)]


def test_a_restarted_source_goes_on_with_an_epoch_of_which_somebody_has_rows() -> None:
    positions = {7: Position((1,), 3)}
    start = Start(0, None, (1,), 3, {}, positions, offset=5, watermark_us=8, begun=6)
    source = CausalSource(Wiring(0, outlets=(Outlet(9, (7,)),)), start=start)
    assert source.begin() == [Restated(3, 8)]
    assert source.restated({9: 8}) == [ResumeReading(5, 6, begun=True), TellRecovered()]


@pytest.mark.parametrize("stateful", [True, False])
def test_output_waits_until_the_order_behind_it_is_durable(stateful: bool) -> None:
    machine = node(determined=True, stateful=stateful)
    machine.received(message(1))
    machine.produced(9, [(7, "rows", 8)], EPOCH)
    assert machine.end_step() == [
        StoreDeterminants(((DiffLink(5, (1,), 0), DiffLink(1, (1,), 0)),))
    ]
    [send] = machine.determinants_stored((1,))
    assert isinstance(send, Send)
    # Whoever has state is asked itself what it was made from; nobody could ask the other.
    assert send.message.diff[1:] == (() if stateful else (DiffLink(1, (1,), 0),))


def test_marks_complete_an_epoch_and_say_so_to_all_children() -> None:
    machine = node()
    assert handle(machine, message(1, kind=MARK)) == []
    sent = handle(machine, message(1, sender=2, kind=MARK))
    assert [(m.kind, m.target, m.diff[1]) for m in sent] == [
        (MARK, 7, completion(0)),
        (MARK, 8, completion(0)),
    ]


def test_a_source_makes_its_cut_durable_before_it_marks_it() -> None:
    source = CausalSource(Wiring(0, outlets=(Outlet(9, (7,)),)))
    source.read(0, 10, 0)
    source.produced(9, [(7, "rows", 8)], EPOCH)
    [send] = source.end_step()
    assert isinstance(send, Send)
    assert send.message.diff == (DiffLink(0, (1,), 0), DiffLink(origin(0), (10, 0), 0))
    assert source.cut(0, None, 10) == [StoreCut(0, 10, None)]
    assert source.cut_stored(0) == [Complete(0, None, 0)]


def test_a_restarted_source_reads_known_ranges_and_durable_cuts_again() -> None:
    target = Target((3,), DiffLink(origin(0), (30, 20), 1))
    start = Start(
        0,
        None,
        (1,),
        -1,
        {},
        {7: Position((1,), -1)},
        (target,),
        top=(3,),
        offset=5,
        cuts=(Cut(0, 20),),
    )
    source = CausalSource(Wiring(0, outlets=(Outlet(9, (7,)),)), start=start)
    seen: list[CausalEffect] = []
    queue = source.begin()
    while queue:
        effect = queue.pop(0)
        seen.append(effect)
        if isinstance(effect, ReadAgain):
            queue = source.end_step() + queue
        elif isinstance(effect, Complete):
            queue = source.completed(effect.epoch, {9: None}, 0) + queue
    assert seen == [
        ReadAgain(5, 20, 0),
        Complete(0, None, 0),
        ReadAgain(20, 30, 1),
        ResumeReading(30, 1),
        TellRecovered(),
    ]


@pytest.fixture
def controller() -> RecoveryMachine:
    kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATELESS, 2: NodeKind.STATEFUL}
    return RecoveryMachine(
        CausalGraph(kinds, {1: (0,), 2: (1,)}),
        RecoveryRecord(dict.fromkeys((0, 1, 2), 0)),
        lambda: [7, 8],
    )


def test_a_recovery_fences_collects_starts_and_opens(controller: RecoveryMachine) -> None:
    effects = controller.lost({1: 0})
    assert [type(e) for e in effects] == [PersistRecord, FenceStore, FenceHosts, ReadStates]
    assert effects[2] == FenceHosts(1, (7, 8), {1: 1})
    assert controller.lost({1: 0}) == []  # old news
    assert controller.host_fenced(1, 7) == []
    assert controller.host_fenced(0, 8) == []  # of an older round
    assert controller.host_fenced(1, 8) == [FenceSources({}, 1), CollectStored(1, {1: 2})]
    assert controller.stored(1, {1: Stored()}, {}) == []
    assert controller.reported(0, 1, NodeReport(0, floors={1: Floor()})) == []
    [start] = controller.reported(2, 1, NodeReport(2, clock={1: Position((4,), 0)}))
    assert isinstance(start, StartNode)
    assert (start.incarnation, start.start.stamp) == (1, (4,))
    assert controller.recovered(1, 1) == []
    assert controller.started(1, 1) == [
        OpenEdge(0, 1, 1, Position((), 0), 1),
        OpenEdge(1, 2, 0, Position((4,), 0), 1),
    ]
    assert not controller.quiet
    assert controller.opened(0, 0, 1, 1) == []
    [settled] = controller.opened(1, 1, 2, 0)
    assert settled == PersistRecord(RecoveryRecord({0: 0, 1: 1, 2: 0}, frozenset(), 1))
    assert controller.quiet


def test_a_failure_during_recovery_starts_over_with_both(controller: RecoveryMachine) -> None:
    controller.lost({1: 0})
    again = controller.lost({2: 0})
    assert again[0] == PersistRecord(RecoveryRecord({0: 0, 1: 2, 2: 1}, frozenset({1, 2}), 2))
    assert controller.reported(0, 1, NodeReport(0)) == []  # of the first round


def test_a_host_that_is_gone_need_not_hear_of_a_fence(controller: RecoveryMachine) -> None:
    controller.lost({1: 0})
    controller.host_fenced(1, 7)
    assert controller.host_gone(8) == [FenceSources({}, 1), CollectStored(1, {1: 2})]
    assert controller.host_gone(8) == []


def test_without_a_plan_all_nodes_restart_and_then_the_flow_ends(
    controller: RecoveryMachine,
) -> None:
    controller.lost({2: 0})
    for host in (7, 8):
        controller.host_fenced(1, host)
    controller.reported(0, 1, NodeReport(0, floors={1: Floor()}))
    controller.reported(1, 1, NodeReport(1, clock={0: Position()}, floors={2: Floor((9,), 3)}))
    widened, *effects = controller.stored(1, {2: Stored()}, {})
    assert isinstance(widened, Widen)
    assert "node 2 has no checkpoint" in widened.reason
    assert controller.failed == {0, 1, 2}
    assert isinstance(effects[2], FenceHosts)
    for host in (7, 8):
        controller.host_fenced(2, host)
    [ended] = controller.stored(2, {0: Stored(), 1: Stored(), 2: Stored()}, {})
    assert isinstance(ended, GiveUp)


CUTS = Stored(cuts=tuple(Cut(epoch, epoch, None) for epoch in range(7)))


def test_checkpoints_from_before_what_is_forgotten_are_of_no_use(
    controller: RecoveryMachine,
) -> None:
    reports = [NodeReport(2, completed=epoch, clock={1: Position((), epoch)}) for epoch in (3, 6)]
    kept = Stored(tuple(Saved(report.completed, report) for report in reports))
    controller.rollback(4, {2: 5})
    for host in (7, 8):
        controller.host_fenced(1, host)
    effects = controller.stored(1, {0: CUTS, 1: Stored(), 2: kept}, {2: 5})
    assert isinstance(effects[1], Refuse)
    starts = {e.node: e.start.completed for e in effects if isinstance(e, StartNode)}
    assert starts[2] == 6


def test_what_a_step_notes_is_durable_with_its_determinant_and_comes_back_in_a_replay() -> None:
    machine = node(determined=True)
    machine.received(message(1))
    machine.noted(b"\x07")
    [stored] = machine.end_step()
    assert isinstance(stored, StoreDeterminants)
    [(own, made_from)] = stored.diffs
    assert (own.values, made_from.values) == (b"\x07", b"")
    target = Target((6,), DiffLink(2, (1,), 0), values=own.values)
    again = restarted(target, determined=True)
    effects = again.received(message(1, sender=2))
    assert [type(effect) for effect in effects] == [Recall, Deliver, EndStep]
    assert effects[0] == Recall(b"\x07")


def test_a_node_of_which_nobody_knows_that_it_notes_values_is_refused() -> None:
    machine = node()
    machine.received(message(1))
    with pytest.raises(InvariantError, match="notes values"):
        machine.noted(b"\x07")
    kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATELESS, 2: NodeKind.SINK}
    parents = {1: (0,), 2: (1,)}
    assert CausalGraph(kinds, parents, noted=frozenset({1, 2})).determined == {1}
    with pytest.raises(GraphError, match="notes values"):
        CausalGraph(kinds, parents, noted=frozenset({0}))


def test_a_checkpoint_that_is_due_in_a_replay_is_taken_at_its_end() -> None:
    machine = restarted(Target((6,), DiffLink(2, (1,), 0)))
    machine.checkpoints.due = True
    machine.received(message(1, sender=2))
    effects = machine.end_step()
    assert [type(effect) for effect in effects] == [TellRecovered, TakeCheckpoint]


def test_rows_before_a_target_that_we_started_after_get_a_stamp_of_their_own() -> None:
    loose = Target((4,), completion(0), loose=True)
    positions = {7: Position((2,), -1), 8: Position((9,), -1)}
    clock = {1: Position((), -1), 2: Position((), -1)}
    targets = (loose, Target((9,), DiffLink(1, (7,), 1)))
    start = Start(5, 1, (5,), -1, clock, positions, targets, top=(9,))
    floors = {7: Floor(), 8: Floor()}
    machine = node(start=start, checkpoint=Checkpoint(NodeReport(5, (5,), floors=floors), {}))
    machine.received(message(1, kind=MARK))
    assert machine.received(message(1, sender=2, kind=MARK)) == [Complete(0, None, 0)]
    machine.produced(9, [(7, "total", 8)], EPOCH)
    machine.completed(0, {9: None}, 0)
    sent = perform(machine, machine.open(7, 0, Position((2,), -1)))
    assert [(m.kind, m.stamp, len(m.diff)) for m in sent] == [(DATA, (6,), 2), (MARK, (6,), 2)]


def test_nodes_that_contradict_again_go_to_older_checkpoints_and_then_the_flow_ends() -> None:
    kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATEFUL, 2: NodeKind.SINK, 3: NodeKind.SINK}
    graph = CausalGraph(kinds, {1: (0,), 2: (1,), 3: (0,)})
    machine = RecoveryMachine(graph, RecoveryRecord(dict.fromkeys(kinds, 0)), tuple)
    saved = [
        NodeReport(1, completed=e, clock={0: Position((), e)}, floors={2: Floor()}) for e in (3, 6)
    ]
    stored = {
        0: CUTS,
        1: Stored(tuple(Saved(report.completed, report) for report in saved)),
        2: Stored((Saved(0, NodeReport(2, completed=6, clock={1: Position((), 6)})),)),
        3: Stored((Saved(0, NodeReport(3, completed=6, clock={0: Position((), 6)})),)),
    }

    def recover(effects: list[RecoveryEffect]) -> dict[int, int]:
        assert isinstance(effects[0], Widen)
        found = machine.stored(machine.round, stored, {})
        starts = [effect for effect in found if isinstance(effect, StartNode)]
        for start in starts:
            machine.started(start.node, start.incarnation)
        machine.recovered(3, machine.record.incarnations[3])
        for sender, target in ((0, 3), (0, 1), (1, 2)):
            now = machine.record.incarnations
            machine.opened(sender, now[sender], target, now[target])
        assert machine.failed == {0, 1, 2}
        return {start.node: start.start.completed for start in starts}

    def contradict() -> list[RecoveryEffect]:
        return machine.contradicted(1, machine.record.incarnations[1], "no")

    assert recover(contradict())[1] == 6
    assert recover(contradict())[1] == 3
    assert contradict() == [GiveUp("no", machine.round)]
