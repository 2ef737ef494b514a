"""Listeners: each hears everything in order, and a slow one holds nobody up."""

import threading
from typing import Any

from penstock.engine.driver.listeners import WAITING_MAX, FlowListener, Listeners
from penstock.errors import PenstockError

WAIT_S = 60.0
QUERY: Any = "the query"


class Noting(FlowListener):
    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.go_on = threading.Event()
        self.called = threading.Event()

    def onQueryStarted(self, query: Any) -> None:
        self.heard.append(query)

    def onQueryProgress(self, progress: Any) -> None:
        self.called.set()
        self.heard.append(progress)
        assert self.go_on.wait(WAIT_S)

    def onQueryTerminated(self, query: Any, error: PenstockError | None) -> None:
        self.heard.append((query, error))


def news(number: int) -> Any:
    return number


def test_everything_comes_in_order_and_the_end_last() -> None:
    listeners, one = Listeners(), Noting()
    one.go_on.set()
    listeners.add(one, QUERY)
    for number in range(10):
        listeners.progressed(news(number))
    error = PenstockError("over")
    listeners.ended(QUERY, error)
    assert listeners.told.wait(WAIT_S)
    assert one.heard == [QUERY, *range(10), (QUERY, error)]


def test_who_is_slow_hears_the_newest_and_the_end() -> None:
    listeners, slow = Listeners(), Noting()
    listeners.add(slow, QUERY)
    listeners.progressed(news(0))
    assert slow.called.wait(WAIT_S)
    for number in range(1, 3 * WAITING_MAX):
        listeners.progressed(news(number))
    listeners.ended(QUERY, None)
    slow.go_on.set()
    assert listeners.told.wait(WAIT_S)
    assert slow.heard == [QUERY, 0, *range(2 * WAITING_MAX, 3 * WAITING_MAX), (QUERY, None)]


def test_without_listeners_nobody_needs_to_be_told() -> None:
    listeners = Listeners()
    listeners.progressed(news(0))
    listeners.ended(QUERY, None)
    assert listeners.told.is_set()
    late = Noting()
    listeners.add(late, QUERY)
    assert late.heard == [QUERY]


def test_who_is_removed_hears_nothing_more() -> None:
    listeners, one, other = Listeners(), Noting(), Noting()
    one.go_on.set()
    other.go_on.set()
    listeners.add(one, QUERY)
    listeners.add(other, QUERY)
    listeners.remove(other)
    listeners.progressed(news(1))
    listeners.ended(QUERY, None)
    assert listeners.told.wait(WAIT_S)
    assert one.heard == [QUERY, 1, (QUERY, None)]
    assert other.heard == [QUERY]
