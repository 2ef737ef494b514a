"""What the story says of losses, of nodes that join, and of recoveries that a person asks for."""

from typing import Any, cast

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.reports import Stored
from penstock.core.control.membership_events import (
    FenceHost,
    LaunchHost,
    LoadsMeasured,
    ProcessEnded,
    RecoverNodes,
    TimePassed,
)
from penstock.core.control.recovery import (
    PersistRecord,
    RecoveryMachine,
    RecoveryRecord,
    StartNode,
    Widen,
)
from penstock.engine.driver.recovery_story import RecoveryStory
from penstock.engine.store.story_log import StoryLine, StoryLog

KINDS = {0: NodeKind.SOURCE, 1: NodeKind.STATELESS, 2: NodeKind.SINK}


class Lines(list[StoryLine]):
    """A log that keeps its lines in memory."""

    def add(self, line: StoryLine) -> None:
        self.append(line)


def story_of(record: RecoveryRecord) -> tuple[RecoveryStory, Lines]:
    lines = Lines()
    graph = CausalGraph(KINDS, {1: (0,), 2: (1,)})
    story = RecoveryStory(cast(StoryLog, lines), graph, "abc".__getitem__, record)
    return story, lines


def lose(story: RecoveryStory, takers: dict[int, int]) -> None:
    effects = [FenceHost(9, 4), RecoverNodes(9, 4, takers, "host 4 was lost: killed")]
    story.decided(9, ProcessEnded(4), effects)


def test_a_loss_says_who_was_lost_why_and_where_its_nodes_go() -> None:
    story, lines = story_of(RecoveryRecord(dict.fromkeys(KINDS, 0), recoveries=3))
    lose(story, {1: 5})
    [lost] = lines
    assert lost[1:] == (
        9,
        4,
        "lost",
        "host 4 was lost (killed); its nodes start again: b on host 5",
    )


def test_nothing_is_told_while_nothing_recovers() -> None:
    story, lines = story_of(RecoveryRecord(dict.fromkeys(KINDS, 0)))
    story.decided(8, LoadsMeasured({}), [])
    story.decided(8, TimePassed(quiet=True), [LaunchHost(8, 5)])
    lose(story, {})  # it ran no nodes
    assert lines == []


def test_nodes_that_join_say_why() -> None:
    story, lines = story_of(RecoveryRecord(dict.fromkeys(KINDS, 0)))
    lose(story, {1: 5})
    story.performed(PersistRecord(RecoveryRecord({0: 0, 1: 1, 2: 0}, frozenset({1}), 1)))
    story.performed(PersistRecord(RecoveryRecord({0: 1, 1: 2, 2: 0}, frozenset({0, 1}), 2)))
    joined = "not lost: a; why: log does not reach back to where the others restart"
    assert lines[-1].text == f"new incarnations: a, b; {joined}"
    story.performed(Widen("node 2 has no checkpoint", None, 2))
    story.performed(PersistRecord(RecoveryRecord(dict.fromkeys(KINDS, 3), frozenset(KINDS), 3)))
    assert "not lost: c; why: there is no plan for less (node c has no" in lines[-1].text
    assert {line.cause for line in lines} == {9}
    assert [line.round for line in lines] == [1, 1, 2, 2, 3]


def test_a_whole_recovery_ends_and_the_next_one_has_its_own_cause() -> None:
    record = RecoveryRecord(dict.fromkeys(KINDS, 0))
    story, lines = story_of(record)
    machine = RecoveryMachine(CausalGraph(KINDS, {1: (0,), 2: (1,)}), record, list)
    effects: list[Any] = machine.lost(record.incarnations)
    effects += machine.stored(1, dict.fromkeys(KINDS, Stored()), {})
    for effect in effects:
        story.performed(effect)
    story.planned([effect for effect in effects if isinstance(effect, StartNode)])
    story.performed(PersistRecord(RecoveryRecord(machine.record.incarnations, frozenset(), 1)))
    assert lines[-1].step == "recovered"
    assert lines[-1].text == "recovered: a, b, c; the recovery is over"
    lose(story, {1: 5})
    assert (lines[-1].cause, lines[-1].round) == (9, 2)
