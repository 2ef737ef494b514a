"""When a flow gives up, and what it says."""

from typing import Any

from penstock.core.control.giving_up import LOSSES_MAX, NO_NODE, QUIET_MS, GivingUp, Losses
from penstock.core.control.host_reports import LastWords
from penstock.errors import FunctionError, HostLostError, PenstockError

NAMES = {1: "numbers[0]", 2: "sums[0]"}
WORDS = LastWords("sums", "sums[0]", 9, "rows 10 to 19 of numbers[0]")


def after(giving_up: GivingUp, losses: int, nodes: list[int], **more: Any) -> PenstockError | None:
    """The failure after some losses of host 5 in a row, the last of which may be the end."""
    found = [
        giving_up.lost(5, 5, nodes, "host 5 was lost: killed", now_ms=n, **more)
        for n in range(losses)
    ]
    assert found[:-1] == [None] * (losses - 1)
    return None if found[-1] is None else PenstockError.from_dict(dict(found[-1]))


def test_a_node_that_recovers_and_dies_again_is_not_making_progress() -> None:
    losses = Losses(limit=2)
    losses.completed(1, 5)
    assert losses.lost([1, 2], now_ms=0) == []
    losses.completed(1, 4)  # a new incarnation, that had to begin before
    assert losses.lost([1], now_ms=1) == []
    losses.completed(1, 5)
    assert losses.lost([1], now_ms=2) == [1]
    losses.completed(1, 6)
    assert losses.lost([1, 2], now_ms=3) == []
    assert losses.lost([2], now_ms=4) == [2]
    assert losses.lost([2], now_ms=5 + QUIET_MS) == []
    assert not losses.lost([], now_ms=0)
    assert [losses.lost([], now_ms=n) for n in (1, 2)] == [[], [NO_NODE]]


def test_the_flow_gives_up_after_the_last_loss_allowed() -> None:
    assert after(GivingUp(NAMES), LOSSES_MAX, [2]) is None
    error = after(GivingUp(NAMES), LOSSES_MAX + 1, [2])
    assert isinstance(error, HostLostError)
    assert error.parameters["node"] == "sums[0]"
    assert error.parameters["losses"] == LOSSES_MAX + 1
    assert "killed" in error.message
    assert "it ran sums[0]" in error.message


def test_progress_in_between_begins_the_count_anew() -> None:
    giving_up = GivingUp(NAMES)
    assert after(giving_up, LOSSES_MAX, [2]) is None
    giving_up.progressed({2: 4})
    assert after(giving_up, LOSSES_MAX, [2]) is None
    giving_up.progressed({2: 4})  # the same epoch again is none
    assert after(giving_up, 1, [2]) is not None


def test_nodes_are_careful_when_half_of_the_losses_are_used_up() -> None:
    giving_up = GivingUp(NAMES)
    after(giving_up, LOSSES_MAX // 2, [2])
    assert not giving_up.careful(2)
    after(giving_up, 1, [2])
    assert giving_up.careful(2)
    assert not giving_up.careful(1)


def test_last_words_name_stage_rows_and_epoch() -> None:
    giving_up = GivingUp(NAMES)
    after(giving_up, LOSSES_MAX, [1, 2])
    giving_up.working(5, WORDS)
    error = after(giving_up, 1, [1, 2])
    assert error is not None
    assert error.parameters["stage"] == "sums"
    for part in ("'sums'", "rows 10 to 19 of numbers[0]", "epoch 9", "onError"):
        assert part in error.message


def test_what_a_node_said_on_another_host_counts_when_this_one_said_nothing() -> None:
    giving_up = GivingUp(NAMES)
    giving_up.working(4, WORDS)
    error = after(giving_up, LOSSES_MAX + 1, [2])
    assert error is not None
    assert error.parameters["rows"] == WORDS.rows


def test_an_exit_status_explains_more_than_a_lost_process() -> None:
    giving_up = GivingUp(NAMES)
    after(giving_up, LOSSES_MAX, [2])
    giving_up.working(5, WORDS._replace(status=3))
    error = after(giving_up, 1, [2])
    assert error is not None
    assert "exit status 3" in error.message


def test_how_the_job_of_a_lost_host_ended_explains_its_loss() -> None:
    giving_up = GivingUp(NAMES)
    giving_up.job_ended(5, "host 5 was lost: out of memory")
    error = after(giving_up, LOSSES_MAX + 1, [2])
    assert error is not None
    assert "out of memory" in error.message


def test_an_error_of_a_stage_is_given_as_it_is() -> None:
    raised = FunctionError("stage 'sums': bad row", stage="sums").to_dict()
    error = after(GivingUp(NAMES), LOSSES_MAX + 1, [2], failure=raised)
    assert isinstance(error, FunctionError)
    assert error.message.startswith("stage 'sums': bad row (after 10 restarts")
    assert error.parameters["stage"] == "sums"


def test_hosts_without_nodes_that_keep_dying_end_the_flow() -> None:
    error = after(GivingUp(NAMES), LOSSES_MAX + 1, [])
    assert error is not None
    assert "of host 5" in error.message
