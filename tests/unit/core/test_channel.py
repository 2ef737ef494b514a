"""The two ends of a channel: numbering, acknowledgement, credit."""

import pytest

from penstock.core.channel import ChannelReceiver, ChannelSender
from penstock.errors import PeerError


def test_messages_are_numbered_from_one_over_all_nodes() -> None:
    end = ChannelSender[str](window_bytes=10)
    assert [end.push(text, node=node, size=1) for node, text in [(1, "a"), (2, "b"), (1, "c")]] == [
        1,
        2,
        3,
    ]


def test_credit_is_counted_per_node() -> None:
    end = ChannelSender[str](window_bytes=10)
    end.push("a", node=1, size=10)
    assert not end.open(1)
    assert end.open(2)
    assert end.outstanding(1) == 10
    assert end.outstanding(2) == 0


def test_a_message_larger_than_the_window_passes_once() -> None:
    end = ChannelSender[str](window_bytes=10)
    assert end.open(1)
    end.push("large", node=1, size=1000)
    assert not end.open(1)
    end.acknowledged(1, {1: 991})
    assert end.open(1)


def test_a_closed_node_does_not_stop_what_has_no_size() -> None:
    end = ChannelSender[str](window_bytes=10)
    end.push("rows", node=1, size=100)
    assert end.push("control", node=-1, size=0) == 2
    assert end.open(-1)


def test_receiving_alone_gives_no_credit_back() -> None:
    end = ChannelSender[str](window_bytes=10)
    end.push("a", node=1, size=10)
    end.acknowledged(1, {})
    assert end.kept == 0
    assert not end.open(1)


def test_acknowledgements_that_are_late_or_doubled_change_nothing() -> None:
    end = ChannelSender[str](window_bytes=10)
    for text in "abc":
        end.push(text, node=1, size=4)
    end.acknowledged(2, {1: 8})
    end.acknowledged(1, {1: 4})
    end.acknowledged(2, {1: 8})
    assert end.kept == 1
    assert end.outstanding(1) == 4


def test_after_a_reconnection_everything_that_the_receiver_lacks_is_sent_again_in_order() -> None:
    end = ChannelSender[str](window_bytes=10)
    for text in "abcd":
        end.push(text, node=1, size=1)
    end.acknowledged(1, {})
    assert end.resume(2) == [(3, "c"), (4, "d")]
    assert end.resume(2) == [(3, "c"), (4, "d")]
    assert end.outstanding(1) == 4


def test_an_acknowledgement_of_what_was_never_sent_is_refused() -> None:
    end = ChannelSender[str](window_bytes=10)
    end.push("a", node=1, size=1)
    with pytest.raises(PeerError, match="message 2 was acknowledged but never sent"):
        end.acknowledged(2, {})
    with pytest.raises(PeerError):
        end.resume(2)


def test_a_receiver_drops_what_it_has_and_refuses_a_gap() -> None:
    end = ChannelReceiver()
    assert end.accept(1)
    assert not end.accept(1)
    with pytest.raises(PeerError, match="message 3 arrived after 1"):
        end.accept(3)
    assert end.received == 1
    assert end.accept(2)


def test_consumption_is_a_running_total_per_node() -> None:
    end = ChannelReceiver()
    end.consume(7, 100)
    end.consume(8, 1)
    end.consume(7, 50)
    assert end.consumed == {7: 150, 8: 1}
