"""The history of recoveries: what one thread reads, the other does not change."""

import json

from penstock.core.control.host_reports import RefusalCounts
from penstock.engine.driver.recovery_history import RecoveryEntry, RecoveryHistory


def recovering(*nodes: str) -> tuple[RecoveryHistory, RecoveryEntry]:
    history = RecoveryHistory()
    entry = history.add(list(nodes), "killed")
    entry.host = 3
    history.planned(list(nodes))
    return history, entry


def test_what_was_read_stays_as_it_was_while_more_is_noted() -> None:
    history, entry = recovering("a", "b")
    history.worked("a", restore_s=1.0)
    history.refused(3, RefusalCounts(messages=1, connections=0, writes=0))
    read = entry.to_dict()
    before = json.dumps(read)
    reading = iter(read["work"].items())
    assert next(reading)[0] == "a"
    history.worked("b", replay_s=1.0)
    history.worked("a", replay_s=1.0)
    history.refused(3, RefusalCounts(messages=1, connections=1, writes=0))
    assert list(reading) == []
    assert json.dumps(read) == before


def test_work_is_summed_per_node_and_known_when_all_have_caught_up() -> None:
    history, entry = recovering("a", "b")
    history.worked("a", restore_s=1.0)
    history.worked("a", resend_s=2.0)
    history.worked("a", resend_s=0.5, replay_s=4.0)
    assert entry.work == {"a": {"restore_s": 1.0, "resend_s": 2.5, "replay_s": 4.0}}
    assert entry.work_s is None
    history.worked("b", replay_s=8.0)
    assert entry.work_s == 15.5


def test_of_writes_that_were_refused_the_most_that_was_told_counts() -> None:
    history, entry = recovering("a")
    history.refused(3, RefusalCounts(messages=2, connections=0, writes=5))
    history.refused(3, RefusalCounts(messages=1, connections=0, writes=4))
    history.refused(7, RefusalCounts(messages=9, connections=9, writes=9))
    assert entry.refused == {"messages": 3, "writes": 5}
