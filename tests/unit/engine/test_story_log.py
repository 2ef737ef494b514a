"""The story of a flow's recoveries: bounded, in order, and never in the way."""

import logging
from pathlib import Path

import pytest

from penstock.engine.store.story_log import STORY, StoryLine, StoryLog, read_story, told_recoveries


def line(number: int, step: str = "note", round_: int = 1) -> StoryLine:
    return StoryLine(number, 7, round_, step, f"line {number}")


def test_a_story_is_bounded_and_keeps_its_newest_lines(tmp_path: Path) -> None:
    story = StoryLog(tmp_path, bytes_max=4000)
    for number in range(200):
        story.add(line(number))
    story.close()
    assert (tmp_path / STORY).stat().st_size <= 4000
    kept = [one.at_us for one in read_story(tmp_path)]
    assert kept == list(range(200 - len(kept), 200))
    assert len(kept) > 15


def test_the_next_run_goes_on_with_the_story(tmp_path: Path) -> None:
    for number in range(3):
        story = StoryLog(tmp_path)
        story.add(line(number))
        story.close()
    assert read_story(tmp_path) == [line(number) for number in range(3)]


def test_a_damaged_story_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / STORY).write_bytes(b"0000 nothing\n" * 2)
    story = StoryLog(tmp_path)
    story.add(line(1))
    story.close()
    assert read_story(tmp_path) == [line(1)]


def test_a_story_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / STORY).mkdir()
    story = StoryLog(tmp_path)
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            story.add(line(number))
        story.close()
    assert len(caplog.records) == 1


def test_losses_during_a_recovery_belong_to_it_and_a_start_never_does() -> None:
    lines = [line(1, "begin"), line(2, "recovered"), line(3, round_=1)]
    lines += [line(4, "lost", 2), line(5, "lost", 3), line(6, "recovered", 3)]
    lines += [line(7, "lost", 4), line(8, "begin", 5)]
    told = told_recoveries(lines)
    assert [one["rounds"] for one in told] == [[1], [2, 3], [4], [5]]
    assert [one["recovered"] for one in told] == [True, True, False, False]
