"""Votes for articles, summed per author: the workload of the thesis on tree clocks, Section 5.

    articles, votes --by article--> counts (stateful) --> sharder (stateless, one node)
        --by author--> authors (stateful) --> results on the driver

Articles are loaded first, as fast as the flow takes them; votes follow at a steady rate.  Every
article passes the sharder, so all of them would have to pass it again if the part behind it were
rebuilt.  Articles and votes are functions of their offsets: what every sum must be is computed
independently afterwards.  One article and one author are reserved for probes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.flow import Flow
from penstock.api.vertex import Time
from penstock.bench.probe import Probe
from penstock.operators.stateful import StatefulVertex

__all__ = ["AUTHORS", "Votes", "author_of", "voted_for"]

AUTHORS = 400
_SPREAD = np.uint64(11_400_714_819_323_198_485)
_SHIFT = np.uint64(32)

ARTICLE = pa.schema({"article": pa.int64(), "author": pa.int64()})
VOTE = pa.schema({"article": pa.int64()})
CHANGE = pa.schema(
    {"article": pa.int64(), "author": pa.int64(), "votes": pa.int64(), "articles": pa.int64()}
)
TOTAL = pa.schema({"author": pa.int64(), "votes": pa.int64(), "articles": pa.int64()})

Integers = npt.NDArray[np.int64]


def _spread(numbers: Integers, below: int) -> Integers:
    """Pseudo-random numbers below a bound, one for each number."""
    mixed = (numbers.view(np.uint64) * _SPREAD) >> _SHIFT
    return ((mixed * np.uint64(below)) >> _SHIFT).view(np.int64)


def author_of(articles: Integers) -> Integers:
    """Who wrote each article."""
    return _spread(articles, AUTHORS)


def voted_for(offsets: Integers, articles: int) -> Integers:
    """Which article each vote is for."""
    return _spread(offsets + 1, articles)


class Articles:
    """Makes articles; the one after the last belongs to the reserved author."""

    def __init__(self, articles: int) -> None:
        self.articles = articles

    def __call__(self, offset: int, n: int, stride: int = 1) -> pa.RecordBatch:
        ids = np.arange(offset, offset + n * stride, stride, dtype=np.int64)
        authors = np.where(ids < self.articles, author_of(ids), AUTHORS)
        return pa.record_batch({"article": ids, "author": authors}, schema=ARTICLE)


class VotesCast:
    """Makes votes."""

    def __init__(self, articles: int) -> None:
        self.articles = articles

    def __call__(self, offset: int, n: int) -> pa.RecordBatch:
        ids = voted_for(np.arange(offset, offset + n, dtype=np.int64), self.articles)
        return pa.record_batch({"article": ids}, schema=VOTE)


class ArticleVotes(StatefulVertex):
    """Author and votes of every article; sends what an epoch changed.

    A vote may come before its article: it is counted, and sent on with the article.
    """

    orderSensitive = False

    def __init__(self, articles: int) -> None:
        super().__init__()
        self._author = np.full(articles, -1, dtype=np.int64)
        self._votes = np.zeros(articles, dtype=np.int64)

    def work(self, time: Time, received: list[tuple[int, pa.RecordBatch]]) -> None:
        """Count the epoch's votes, take its articles in."""
        cast = [batch["article"].to_numpy() for port, batch in received if port > 0]
        written = [batch for port, batch in received if port == 0]
        ids, votes = np.unique(np.concatenate(cast or [np.empty(0, np.int64)]), return_counts=True)
        self._votes[ids] += votes
        known = self._author[ids] >= 0
        ids, votes = ids[known], votes[known]
        changes = [(ids, self._author[ids], votes, np.zeros_like(ids))]
        for batch in written:
            new, authors = batch["article"].to_numpy(), batch["author"].to_numpy()
            self._author[new] = authors
            changes.append((new, authors, self._votes[new], np.ones_like(new)))
        columns = [np.concatenate(parts) for parts in zip(*changes, strict=True)]
        self.sendBy(0, pa.RecordBatch.from_arrays(columns, schema=CHANGE), time)

    def snapshot(self) -> dict[str, pa.Table]:
        ids = np.flatnonzero((self._author >= 0) | (self._votes > 0))
        columns = {"article": ids, "author": self._author[ids], "votes": self._votes[ids]}
        return {"articles": pa.table(columns)}

    def load(self, state: Mapping[str, pa.Table]) -> None:
        table = state["articles"]
        ids = table["article"].to_numpy()
        self._author[ids] = table["author"].to_numpy()
        self._votes[ids] = table["votes"].to_numpy()


class AuthorVotes(StatefulVertex):
    """Votes and articles of every author; sends the new totals that an epoch changed."""

    orderSensitive = False

    def __init__(self) -> None:
        super().__init__()
        self._votes = np.zeros(AUTHORS + 1, dtype=np.int64)
        self._articles = np.zeros(AUTHORS + 1, dtype=np.int64)

    def work(self, time: Time, received: list[tuple[int, pa.RecordBatch]]) -> None:
        """Add the epoch's changes to the totals."""
        changed = np.zeros(AUTHORS + 1, dtype=np.int64)
        for _, batch in received:
            authors = batch["author"].to_numpy()
            changed += np.bincount(authors, minlength=AUTHORS + 1)
            for totals, name in ((self._votes, "votes"), (self._articles, "articles")):
                # Exact: far fewer than 2^53 of either in one batch.
                added = np.bincount(authors, batch[name].to_numpy(), minlength=AUTHORS + 1)
                totals += added.astype(np.int64)
        self.sendBy(0, self._rows(np.flatnonzero(changed)), time)

    def snapshot(self) -> dict[str, pa.Table]:
        return {"authors": pa.Table.from_batches([self._rows(np.arange(AUTHORS + 1))])}

    def load(self, state: Mapping[str, pa.Table]) -> None:
        self._votes[:] = state["authors"]["votes"].to_numpy()
        self._articles[:] = state["authors"]["articles"].to_numpy()

    def _rows(self, authors: Integers) -> pa.RecordBatch:
        columns = [authors, self._votes[authors], self._articles[authors]]
        return pa.RecordBatch.from_arrays(columns, schema=TOTAL)


class Votes:
    """One run: the flow, its probe, and the totals that the driver has seen."""

    def __init__(self, articles: int, rate: float, shards: int = 2) -> None:
        self.articles = articles
        self.flow = Flow("votes")
        self.votes = np.zeros(AUTHORS + 1, dtype=np.int64)
        self.loaded = np.zeros(AUTHORS + 1, dtype=np.int64)
        written = self.flow.generate(
            Articles(articles), rows=articles + 1, shards=1, name="articles"
        )
        cast = self.flow.generate(VotesCast(articles), rate=rate, shards=1, name="votes")
        self._probes = self.flow.memory(VOTE, name="probes")
        state = articles + 1
        (changes,) = self.flow.vertex(
            lambda: ArticleVotes(state),
            [written, cast, self._probes],
            [CHANGE],
            partitionBy=[["article"]] * 3,
            shards=shards,
            name="counts",
        )
        sharded = changes.keyBy("author", shards=1).name("sharder")
        (totals,) = self.flow.vertex(
            AuthorVotes, [sharded], [TOTAL], partitionBy=[["author"]], shards=shards, name="authors"
        )
        self.hosts = 3 + 2 * shards
        """As many as there are nodes outside the driver: each has a process of its own."""
        self._back = 0
        self.probe = Probe(self._push, totals.subscribe(name="results"), self._take)

    def load(self, timeout_s: float) -> float:
        """Wait until every article has reached its author; seconds that it took."""
        began = time.monotonic()
        while int(self.loaded.sum()) < self.articles + 1:
            self.probe.check()
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"{self.loaded.sum()} of {self.articles} articles were loaded")
            time.sleep(0.01)
        return time.monotonic() - began

    def close(self) -> None:
        """Send no more probes."""
        self.probe.stop()
        self._probes.close()

    def wrong(self) -> int:
        """How far the totals are from those of the votes that were cast and the articles written.

        Votes come from one shard in order, so those that were counted are the first ones.
        """
        cast = int(self.votes[:AUTHORS].sum())
        expected = np.zeros(AUTHORS, dtype=np.int64)
        written = np.zeros(AUTHORS, dtype=np.int64)
        for start in range(0, cast, 1 << 20):
            offsets = np.arange(start, min(start + (1 << 20), cast), dtype=np.int64)
            voted = author_of(voted_for(offsets, self.articles))
            expected += np.bincount(voted, minlength=AUTHORS)
        for start in range(0, self.articles, 1 << 20):
            ids = np.arange(start, min(start + (1 << 20), self.articles), dtype=np.int64)
            written += np.bincount(author_of(ids), minlength=AUTHORS)
        wrong = np.abs(expected - self.votes[:AUTHORS]) + np.abs(written - self.loaded[:AUTHORS])
        return int(wrong.sum())

    def _push(self, number: int) -> None:
        self._probes.push(pa.record_batch({"article": [self.articles]}, schema=VOTE))

    def _take(self, rows: pa.Table) -> Iterable[int]:
        """Keep the newest totals; the votes of the reserved author are the probes' numbers."""
        authors = rows["author"].to_numpy()
        self.votes[authors] = rows["votes"].to_numpy()
        self.loaded[authors] = rows["articles"].to_numpy()
        first, self._back = self._back, max(self._back, int(self.votes[AUTHORS]))
        return range(first, self._back)
