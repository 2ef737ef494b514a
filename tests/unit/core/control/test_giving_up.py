"""When a flow gives up, and what it says."""

from typing import Any

from penstock.core.control.deadly_rows import ROWS_MAX, Care, SkippedRow, Suspects
from penstock.core.control.giving_up import (
    LOSSES_MAX,
    NO_NODE,
    QUIET_MS,
    GivingUp,
    Judgement,
    Losses,
)
from penstock.core.control.host_reports import LastWords
from penstock.errors import FunctionError, HostLostError, PenstockError

NAMES = {1: "numbers[0]", 2: "sums[0]"}
WORDS = LastWords("sums", "sums[0]", 9, "rows 10 to 19 of numbers[0]")


def after(giving_up: GivingUp, losses: int, nodes: list[int], **more: Any) -> PenstockError | None:
    """The failure after some losses of host 5 in a row, the last of which may be the end."""
    found = [
        giving_up.lost(5, 5, nodes, "host 5 was lost: killed", now_ms=n, **more).failure
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
    assert not giving_up.care(2).announces
    after(giving_up, 1, [2])
    assert giving_up.care(2).announces
    assert not giving_up.care(1).announces


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


# -- rows that a stage may pass over ---------------------------------------------------------------

ROWS = tuple(range(100, 200))


def lost_with(giving_up: GivingUp, *digests: int, nodes: tuple[int, ...] = (1, 2)) -> Judgement:
    giving_up.working(5, WORDS._replace(digests=digests, status=3))
    return giving_up.lost(5, 5, [*nodes], "host 5 was lost: killed", now_ms=0)


def test_a_deadly_row_is_found_and_the_search_does_not_count_as_losses() -> None:
    giving_up = GivingUp(NAMES, {2})
    assert giving_up.care(2) == Care()
    assert lost_with(giving_up, *ROWS) == Judgement()
    care = giving_up.care(2)
    assert care == Care(announces=True, suspects=(Suspects("sums", ROWS, piece=10),))
    assert giving_up.care(1) == Care()  # it has no stage that may skip
    assert lost_with(giving_up, *ROWS[20:30]) == Judgement()
    assert giving_up.care(2).suspects == (Suspects("sums", ROWS[20:30], piece=1),)
    assert lost_with(giving_up, 123) == Judgement()
    found = lost_with(giving_up, 123).skip
    assert found == SkippedRow("sums", 123, 9, "its process ended itself with exit status 3")
    assert giving_up.care(2).skipped == ()  # it is not durable yet
    giving_up.recorded([found])
    assert giving_up.care(2) == Care(skipped=(found,))
    assert after(giving_up, LOSSES_MAX - 1, [1, 2]) is None  # one of four has counted
    assert after(giving_up, 1, [1, 2]) is not None


def test_a_row_that_could_not_be_recorded_is_found_again() -> None:
    giving_up = GivingUp(NAMES, {2})
    first = [lost_with(giving_up, 7, 8), lost_with(giving_up, 7), lost_with(giving_up, 7)]
    assert first[2].skip is not None
    assert lost_with(giving_up, 7).skip == first[2].skip


def test_losses_that_name_other_rows_each_time_end_the_flow() -> None:
    giving_up = GivingUp(NAMES, {2})
    found = [lost_with(giving_up, n, n + 1) for n in range(0, 4 * LOSSES_MAX, 2)]
    assert [one.skip for one in found] == [None] * len(found)
    assert [bool(one.failure) for one in found].index(True) == LOSSES_MAX


def test_a_loss_between_two_calls_is_not_put_down_to_rows() -> None:
    giving_up = GivingUp(NAMES, {2})
    for _ in range(3):
        giving_up.working(5, WORDS._replace(digests=(7,)))
        giving_up.working(5, LastWords())
        assert giving_up.lost(5, 5, [2], "killed", now_ms=0) == Judgement()
    assert giving_up.care(2) == Care(announces=True)


def test_nodes_that_may_skip_are_careful_after_two_losses() -> None:
    giving_up = GivingUp(NAMES, {2})
    after(giving_up, 1, [1, 2])
    assert not giving_up.care(2).announces
    after(giving_up, 1, [1, 2])
    assert (giving_up.care(1).announces, giving_up.care(2).announces) == (False, True)


def test_a_stage_passes_over_a_limited_number_of_rows() -> None:
    giving_up = GivingUp(NAMES, {2})
    for row in range(ROWS_MAX):
        lost_with(giving_up, row)
        found = lost_with(giving_up, row).skip
        assert found is not None
        giving_up.recorded([found])
    failures = [lost_with(giving_up, ROWS_MAX).failure for _ in range(LOSSES_MAX + 1)]
    assert failures[-1] is not None
    assert f"'sums' has passed over {ROWS_MAX} rows already" in failures[-1]["message"].lower()


def test_a_row_that_is_passed_over_and_ends_a_process_all_the_same_is_a_loss() -> None:
    giving_up = GivingUp(NAMES, {2})
    giving_up.recorded([SkippedRow("sums", 7, 9, "exit status 3")])
    found = [lost_with(giving_up, 7) for _ in range(LOSSES_MAX + 1)]
    assert [one.failure is None for one in found] == [True] * LOSSES_MAX + [False]


def test_the_earliest_epoch_of_a_row_counts() -> None:
    giving_up = GivingUp(NAMES, {2})
    row = SkippedRow("sums", 7, 9, "exit status 3")
    giving_up.recorded([row, row._replace(since=4), row._replace(since=6)])
    assert giving_up.care(2).skipped == (row._replace(since=4),)
