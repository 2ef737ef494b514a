"""Votes per author: sums are right, state survives a snapshot, probes come through."""

from penstock.demos.votes import AUTHORS, Votes
from penstock.testing.local import start_local


def test_sums_per_author_are_those_of_the_votes_cast() -> None:
    votes = Votes(2_000, rate=5_000)
    query = start_local(votes.flow, hosts=2, epochInterval="20 ms")
    votes.probe.start()
    votes.load(20)
    normal = votes.probe.normal_ms(0.5)
    votes.close()
    query.stop()
    votes.probe.join(5)
    assert normal
    assert votes.probe.missing == 0
    assert votes.votes[:AUTHORS].sum() > 0
    assert votes.votes[AUTHORS] == votes.probe.sent
    assert votes.wrong() == 0
    votes.votes[3] += 1
    assert votes.wrong() > 0
