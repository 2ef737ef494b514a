"""Hosts that keep up with nodes elsewhere."""

from penstock.core.control.followers import Followers, Following, TellFollow
from penstock.core.control.host_orders import CheckpointNews

FIRST, SECOND, THIRD = (CheckpointNews(1, key, 100 * key) for key in (1, 2, 3))


class Flow:
    """Nodes 7 and 8, each in its first incarnation."""

    def __init__(self) -> None:
        self.incarnations = {7: 1, 8: 1}
        self.followers = Followers(lambda: self.incarnations)


def test_a_host_that_begins_is_told_of_the_newest_checkpoints_only() -> None:
    followers = Flow().followers
    for state in (FIRST, SECOND):
        assert followers.saved(7, state) == []
    assert followers.begin(3) == [TellFollow(3, {7: SECOND})]


def test_a_host_is_told_of_every_checkpoint_of_the_nodes_that_it_follows() -> None:
    followers = Flow().followers
    assert followers.begin(3, [7]) == []
    assert followers.begin(4) == []
    assert followers.saved(7, FIRST) == [TellFollow(3, {7: FIRST}), TellFollow(4, {7: FIRST})]
    assert followers.saved(8, FIRST) == [TellFollow(4, {8: FIRST})]


def test_a_host_that_has_ended_is_told_nothing_and_is_not_current() -> None:
    followers = Flow().followers
    followers.begin(3)
    assert followers.is_current(3)  # there is nothing to follow yet
    followers.end(3)
    assert followers.saved(7, FIRST) == []
    assert not followers.is_current(3)
    followers.followed(3, 7, 1)  # an answer that was under way
    assert followers.status() == []


def test_a_host_is_current_when_it_is_at_most_one_checkpoint_behind() -> None:
    followers = Flow().followers
    followers.begin(3)
    followers.saved(7, SECOND)
    assert not followers.is_current(3)
    followers.followed(3, 7, 2)
    assert followers.is_current(3)
    followers.saved(7, THIRD)
    assert followers.is_current(3)
    followers.saved(7, CheckpointNews(1, 4, 400))
    assert not followers.is_current(3)


def test_a_checkpoint_of_an_older_incarnation_is_not_followed() -> None:
    flow = Flow()
    flow.followers.saved(7, FIRST)
    flow.incarnations[7] = 2
    assert flow.followers.begin(3) == []
    assert flow.followers.is_current(3)
    assert flow.followers.saved(7, SECOND) == []
    again = CheckpointNews(2, 2, 200)
    assert flow.followers.saved(7, again) == [TellFollow(3, {7: again})]


def test_people_see_how_much_is_followed_and_how_far_behind() -> None:
    followers = Flow().followers
    followers.begin(3)
    followers.saved(7, THIRD)
    followers.saved(8, FIRST)
    followers.followed(3, 7, 1)
    assert followers.status() == [Following(3, nodes=2, bytes=400, behind=2)]
