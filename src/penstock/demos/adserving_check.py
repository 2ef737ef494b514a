"""What came out of the ad-serving application against what must have, part by part.

Components and hashtags are computed again from the tweets, each answer from the versions of the
tables that it says it saw, balances from the answers that were delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.connectors.database_dialects import dialect_of
from penstock.demos.adserving import (
    ADVERTISERS,
    BALANCES,
    HOUSE_AD,
    POPULAR,
    SIZE_S,
    SLIDE_S,
    STATISTICS,
    AdServing,
    ads,
    top_tags,
)

__all__ = ["AdServingOutcome", "balances", "check", "components_of"]

SLIDE_US = SLIDE_S * 1_000_000
COVERED = SIZE_S // SLIDE_S

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AdServingOutcome:
    """How many of each there are, and how many are not as they must be."""

    queries: int
    answers_lost: int
    answers_duplicated: int
    answers_wrong: int
    billed_lost: int
    """Served ads that are missing from the balances."""
    billed_duplicated: int
    cents_wrong: int
    """By how many cents the balances are off, whatever the number of ads."""
    statistics_wrong: int
    windows: int
    components_wrong: int
    """Windows whose components are not those of the tweets."""
    hashtags_wrong: int
    fits: int
    """Versions of the recommendations."""

    @property
    def lost(self) -> int:
        """Answers and served ads that are nowhere."""
        return self.answers_lost + self.billed_lost

    @property
    def duplicated(self) -> int:
        """Answers and served ads that are there more than once."""
        return self.answers_duplicated + self.billed_duplicated

    @property
    def billing_exact(self) -> bool:
        """Whether each served ad was charged once, at its price."""
        return not (self.billed_lost or self.billed_duplicated or self.cents_wrong)

    @property
    def right(self) -> bool:
        """Whether everything is as it must be."""
        wrong = self.answers_wrong + self.components_wrong + self.hashtags_wrong
        return self.billing_exact and not (
            self.lost or self.duplicated or wrong or self.statistics_wrong
        )


def check(run: AdServing, before: Integers | None = None) -> AdServingOutcome:
    """Compare everything; the flow must have ended.  ``before`` is what the balances were."""
    answers = pa.concat_tables([rows for _, rows in run.delivered]) if run.delivered else None
    times = np.zeros(run.query_rows, dtype=np.int64)
    wrong = 0
    served = np.zeros((ADVERTISERS, 2), dtype=np.int64)
    if answers is not None:
        np.add.at(times, answers["id"].to_numpy(), 1)
        wrong = _wrong_answers(run, answers)
        advertisers = answers["advertiser"].to_numpy()
        served[:, 0] = np.bincount(advertisers, answers["price"].to_numpy(), ADVERTISERS)
        served[:, 1] = np.bincount(advertisers, minlength=ADVERTISERS)
    statistics = balances(run.database, STATISTICS)
    off = balances(run.database) - (0 if before is None else before) - served
    windows, components_wrong, hashtags_wrong = _windows(run)
    return AdServingOutcome(
        queries=run.query_rows,
        answers_lost=int((times == 0).sum()),
        answers_duplicated=int(np.maximum(times - 1, 0).sum()),
        answers_wrong=wrong,
        billed_lost=int(-np.minimum(off[:, 1], 0).sum()),
        billed_duplicated=int(np.maximum(off[:, 1], 0).sum()),
        cents_wrong=int(np.abs(off[:, 0]).sum()),
        statistics_wrong=int(np.abs(statistics - served).sum()),
        windows=windows,
        components_wrong=components_wrong,
        hashtags_wrong=hashtags_wrong,
        fits=len(run.tables["recommendations"].versions()),
    )


# -- answers -------------------------------------------------------------------------------------


def _wrong_answers(run: AdServing, answers: pa.Table) -> int:
    """How many answers are not what their versions say."""
    columns = [run.tables[name].column for name in ("recommendations", "components", "popular")]
    seen = np.stack([pc.fill_null(answers[name], -1).to_numpy() for name in columns])
    wrong = 0
    for triple in np.unique(seen, axis=1).T.tolist():
        rows = answers.filter(pa.array((triple == seen.T).all(axis=1)))
        wrong += _wrong_of(run, rows, dict(zip(columns, triple, strict=True)))
    users = run.queries.users(answers["id"].to_numpy().copy())
    return wrong + int((users != answers["user"].to_numpy()).sum())


def _wrong_of(run: AdServing, rows: pa.Table, triple: dict[str, int]) -> int:
    def column(name: str, key: str, value: str) -> dict[int, int]:
        table = run.tables[name]
        version = triple[table.column]
        seen = table.schema.empty_table() if version < 0 else table.read(version)
        return dict(zip(seen[key].to_pylist(), seen[value].to_pylist(), strict=True))

    ad_of = column("recommendations", "user", "ad")
    component_of = column("components", "vertex", "component")
    tag_of = column("popular", "component", "popular_tag")
    facts = ads().to_pylist()
    wrong = 0
    for row in rows.to_pylist():
        component = component_of.get(row["user"])
        ad = ad_of.get(row["user"])
        if ad is None and component is not None:
            ad = ad_of.get(component)
        fact = facts[HOUSE_AD if ad is None else ad]
        tag = None if component is None else tag_of.get(component)
        expected = {**fact, "component": component, "popular_tag": tag}
        wrong += any(row[name] != value for name, value in expected.items())
    return wrong


# -- billing -------------------------------------------------------------------------------------


def balances(url: str, table: str = BALANCES) -> Integers:
    """Cents and ads per advertiser; none before there is a table."""
    found = np.zeros((ADVERTISERS, 2), dtype=np.int64)
    dialect = dialect_of(url)
    with closing(dialect.connect()) as connection:
        if dialect.has_table(connection, table):
            cursor = connection.cursor()
            cursor.execute(f"SELECT advertiser, cents, ads FROM {table}")
            for advertiser, cents, count in cursor.fetchall():
                found[advertiser] = cents, count
    return found


# -- windows -------------------------------------------------------------------------------------


def _windows(run: AdServing) -> tuple[int, int, int]:
    """How many windows there are, and in how many of them components and hashtags are wrong."""
    published: dict[int, dict[int, int]] = {}
    table = run.tables["components"]
    for version in table.versions():
        rows = table.read(version)
        members = dict(zip(rows["vertex"].to_pylist(), rows["component"].to_pylist(), strict=True))
        published[rows["window"][0].as_py()] = members
    files = sorted(str(file) for file in (run.folder / "hashtags").glob("epoch=*/*.parquet"))
    tags = ds.dataset(files, schema=POPULAR, format="parquet").to_table() if files else None
    windows = components_wrong = hashtags_wrong = 0
    for window, members, popular in _expected_windows(run):
        windows += 1
        # Windows that end in one epoch are one version, which has the newest of them.
        components_wrong += published.get(window, members) != members
        found = [] if tags is None else tags.filter(pc.equal(tags["window"], window)).to_pylist()
        found.sort(key=lambda row: (row["component"], row["rank"]))
        hashtags_wrong += found != popular.to_pylist()
    return windows, components_wrong + (not published), hashtags_wrong


def _expected_windows(run: AdServing) -> Iterator[tuple[int, dict[int, int], pa.RecordBatch]]:
    """Each window with its members' components and its popular hashtags, from the tweets alone."""
    ids = np.arange(run.tweet_rows, dtype=np.int64)
    slides = run.tweets.time_us(ids) // SLIDE_US
    columns = run.tweets.columns(ids)
    for window in range(int(slides[0]), int(slides[-1]) + COVERED):
        inside = (slides > window - COVERED) & (slides <= window)
        user, other, tag = (columns[name][inside] for name in ("user", "mentioned", "tag"))
        edges = user != other
        members = components_of(user[edges], other[edges])
        component = np.array([members.get(one, -1) for one in user.tolist()], dtype=np.int64)
        known = component >= 0
        rows = {
            "window": np.full(int(known.sum()), window),
            "component": component[known],
            "tag": tag[known],
            "tweets": np.ones(int(known.sum()), dtype=np.int64),
        }
        yield window, members, top_tags(pa.table(rows))


def components_of(one: Integers, other: Integers) -> dict[int, int]:
    """The least vertex of each vertex's component, found by joining edge after edge.

    >>> components_of(np.array([1, 5, 2]), np.array([2, 6, 3]))
    {1: 1, 2: 1, 3: 1, 5: 5, 6: 5}
    """
    parents = {vertex: vertex for vertex in sorted({*one.tolist(), *other.tolist()})}

    def root(vertex: int) -> int:
        while parents[vertex] != vertex:
            parents[vertex] = parents[parents[vertex]]
            vertex = parents[vertex]
        return vertex

    for first, second in zip(one.tolist(), other.tolist(), strict=True):
        low, high = sorted((root(first), root(second)))
        parents[high] = low
    return {vertex: root(vertex) for vertex in parents}
