"""The driver's connections to hosts, while hosts come and go."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.core.control.host_orders import HostOrder, MoveFrontier
from penstock.core.control.roster import Roster
from penstock.engine.driver.links import HostLinks
from penstock.engine.host.transport import Transport, TransportCalls
from penstock.errors import InvariantError
from penstock.wire.control import decode_to_host

SECRET = "s3cret"
WAIT_S = 60.0
MOVED = MoveFrontier(0, 0, 1, (), ())


class Peer:
    """A transport that remembers what it was told."""

    def __init__(self, number: int) -> None:
        self.orders: list[Any] = []
        self.told = threading.Event()
        self.transport = Transport(
            number,
            "127.0.0.1",
            SECRET,
            TransportCalls(
                lambda peer, message: None,
                self._on_control,
                lambda: None,
                lambda peer, why: None,
                lambda error: None,
            ),
        )

    def _on_control(self, peer: int, packed: Any) -> None:
        self.orders.append(decode_to_host(packed, peer))
        self.told.set()


@pytest.fixture
def peer() -> Iterator[Callable[[int], Peer]]:
    made: list[Peer] = []

    def make(number: int) -> Peer:
        made.append(Peer(number))
        return made[-1]

    yield make
    for one in made:
        one.transport.close()


def links_of(driver: Peer, roster: Roster) -> HostLinks:
    host: Any = SimpleNamespace(transport=driver.transport)
    return HostLinks(host, driver.transport.address, roster)


def test_what_all_are_told_leaves_out_a_host_that_has_no_channel_yet(
    peer: Callable[[int], Peer],
) -> None:
    """Frontiers are sent by threads of channels, between a host's registration and its channel."""
    driver, old = peer(0), peer(1)
    roster = Roster(2, standby=0)
    links = links_of(driver, roster)
    roster.hosts[2].address = old.transport.address
    roster.hosts[1].address = "tcp://127.0.0.1:1"  # registered; its channel is not open yet
    driver.transport.connect(2, old.transport.address)
    links.to_all(MOVED)
    assert old.told.wait(WAIT_S)
    assert old.orders == [MOVED]


def test_an_order_to_a_host_that_is_not_known_is_a_bug(peer: Callable[[int], Peer]) -> None:
    links = links_of(peer(0), Roster(1, standby=0))
    with pytest.raises(InvariantError, match="no channel to host 1"):
        links.to(1, MOVED)


def test_what_is_sent_while_a_host_is_given_up_is_dropped(peer: Callable[[int], Peer]) -> None:
    driver, lost = peer(0), peer(1)
    roster = Roster(1, standby=0)
    links = links_of(driver, roster)
    roster.hosts[1].address = lost.transport.address
    driver.transport.connect(1, lost.transport.address)
    sent: list[HostOrder] = []

    class Channels(dict[int, Any]):
        """Somebody else sends at the moment in which the channel is taken away."""

        def pop(self, key: int, default: Any = None) -> Any:
            channel = super().pop(key, default)
            links.to(key, MOVED)
            sent.append(MOVED)
            return channel

    transport = cast(Any, driver.transport)
    transport._outgoing = Channels(transport._outgoing)
    driver.transport.forget(1)
    assert sent == [MOVED]
    assert driver.transport.forgot(1)
