"""Votes per author: sums are right, state survives a snapshot, probes come through."""

import pyarrow as pa

from penstock.demos.votes import ArticleVotes, AuthorVotes
from penstock.testing.harness import Harness


def articles(*pairs: tuple[int, int]) -> pa.RecordBatch:
    ids, authors = zip(*pairs, strict=True)
    return pa.record_batch({"article": pa.array(ids), "author": pa.array(authors)})


def cast(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"article": pa.array(ids)})


def rows(harness: Harness, epoch: int) -> list[tuple[int, ...]]:
    table = harness.table(epoch=epoch)
    return [] if table is None else sorted(tuple(row.values()) for row in table.to_pylist())


def test_a_vote_that_comes_before_its_article_is_sent_on_with_it() -> None:
    harness = Harness(ArticleVotes(10))
    harness.recv(cast(7, 7), epoch=0, port=1)
    harness.complete(0)
    assert rows(harness, 0) == []
    harness.recv(articles((7, 3), (8, 4)), epoch=1, port=0)
    harness.recv(cast(7), epoch=1, port=2)
    harness.complete(1)
    assert rows(harness, 1) == [(7, 3, 3, 1), (8, 4, 0, 1)]
    harness.recv(cast(8, 7, 8), epoch=2, port=1)
    harness.complete(2)
    assert rows(harness, 2) == [(7, 3, 1, 0), (8, 4, 2, 0)]


def test_state_given_back_goes_on_where_it_was() -> None:
    first = Harness(ArticleVotes(10))
    first.recv(articles((1, 5)), epoch=0, port=0)
    first.recv(cast(1, 2), epoch=0, port=1)
    first.complete(0)
    again = first.restarted(ArticleVotes(10))
    again.recv(articles((2, 6)), epoch=1, port=0)
    again.recv(cast(1), epoch=1, port=1)
    again.complete(1)
    assert rows(again, 1) == [(1, 5, 1, 0), (2, 6, 1, 1)]

    changes = pa.record_batch(
        {"article": [1, 2, 3], "author": [5, 6, 5], "votes": [2, 0, 1], "articles": [1, 1, 0]}
    )
    totals = Harness(AuthorVotes())
    totals.recv(changes, epoch=0)
    totals.complete(0)
    assert rows(totals, 0) == [(5, 3, 1), (6, 0, 1)]
    later = totals.restarted(AuthorVotes())
    later.recv(changes.slice(2), epoch=1)
    later.complete(1)
    assert rows(later, 1) == [(5, 4, 1)]
