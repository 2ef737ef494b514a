"""The clock of a thread's work."""

import threading

import pytest

from penstock.engine.host import clock


def no_file(*_: object, **__: object) -> None:
    raise FileNotFoundError


def test_the_clock_of_a_threads_work_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its two looks the thread was kept waiting, which it learns only the next time."""
    looks = iter([10.0, 9.9, 11.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(looks) + 1e9)
    monkeypatch.setattr(clock, "open", no_file, raising=False)
    seen: list[float] = []
    thread = threading.Thread(target=lambda: seen.extend(clock.work_clock_s() for _ in range(3)))
    thread.start()
    thread.join()
    assert [round(each - 1e9, 3) for each in seen] == [10.0, 10.0, 11.0]
