"""Ad serving: the application of Gog, Isard and Abadi (2021), Fig. 1, a regime for each part.

    tweets --+--> mentions --> components of a sliding window (a loop)   Lazy
             |                        |                |
             |                        |           [components]
             +--> tags --> hashtags popular in each component            Lazy
             |                        |
             |                   [popular]
             +--> ratings --> Spark's ALS --> [recommendations]          Batch

    queries --> versions noted --> serving --+--> answers                Causal, Ephemeral
                                             |
                                         persisted --> charges, totals --> database   Eager

``[tables]`` are published in versions.  The serving part looks things up in them and has no edge to
the parts that make them: it takes the newest versions there are, never waits for any, and nothing
that happens over there can make it go back.  An answer says which versions it saw, so it can be
checked afterwards, and is.

Tweets and queries are functions of their offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api import functions as F
from penstock.api.flow import Flow, Stream
from penstock.api.regimes import Batch, Eager, Ephemeral, Lazy
from penstock.api.vertex import Time
from penstock.connectors.subscribe import Subscription
from penstock.connectors.table import PublishedTable
from penstock.library.window_graphs import window_components
from penstock.operators.grouping import Fold, group_rows
from penstock.operators.stateful import StatefulVertex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "PARTS",
    "AdServing",
    "Queries",
    "Scale",
    "Tweets",
    "ads",
    "recommend",
    "spark_fit",
    "top_tags",
]

USERS = 3_000
COMMUNITY = 30
"""Users who mention each other."""
TAGS = 40
ADVERTISERS = 12
TOP = 3
"""Number of popular hashtags per component."""
SIZE_S, SLIDE_S = 4, 1
BALANCES, STATISTICS = "ad_balances", "ad_statistics"
"""Tables of the database: what each advertiser owes, and what this run has served."""
HOUSE_AD = 0
"""Shown to users of whom nothing is known."""

TWEET = pa.schema(
    {
        "id": pa.int64(),
        "user": pa.int64(),
        "mentioned": pa.int64(),
        "tag": pa.int64(),
        "time": pa.timestamp("us", tz="UTC"),
    }
)
QUERY = pa.schema({"id": pa.int64(), "user": pa.int64(), "time": pa.timestamp("us", tz="UTC")})
RECOMMENDATION = pa.schema({"user": pa.int64(), "ad": pa.int64(), "fit": pa.int64()})
POPULAR = pa.schema(
    {
        "window": pa.int64(),
        "component": pa.int64(),
        "rank": pa.int64(),
        "tag": pa.int64(),
        "tweets": pa.int64(),
    }
)
PARTS = ("tweets", "components", "hashtags", "recommendations", "serving", "billing")
"""Each runs on hosts of its own."""

_SPREAD = np.uint64(11_400_714_819_323_198_485)
Integers = npt.NDArray[np.int64]


def _spread(ids: Integers, salt: int, below: int) -> Integers:
    """Pseudo-random numbers below a bound, one for each id."""
    mixed = (ids.view(np.uint64) * np.uint64(8) + np.uint64(salt)) * _SPREAD
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _SPREAD >> np.uint64(32)
    return ((mixed * np.uint64(below)) >> np.uint64(32)).view(np.int64)


class Tweets:
    """Makes tweets: who mentions whom is mostly who is in the same community, who tags what too."""

    def __init__(self, rate: float, origin_us: int) -> None:
        self.us_per_row = 1_000_000 / rate
        self.origin_us = origin_us

    def columns(self, ids: Integers) -> dict[str, Integers]:
        """All columns but the time; a tweet without a mention mentions its author."""
        user = _spread(ids, 1, USERS)
        community = user // COMMUNITY
        other = community * COMMUNITY + _spread(ids, 2, COMMUNITY)
        mentions = _spread(ids, 3, 10) < 6
        liked = _spread(ids, 4, 6)
        return {
            "id": ids,
            "user": user,
            "mentioned": np.where(mentions, other, user),
            "tag": (community + liked * liked) % TAGS,
        }

    def time_us(self, ids: Integers) -> Integers:
        """Event time."""
        return self.origin_us + (ids * self.us_per_row).astype(np.int64)

    def __call__(self, offset: int, n: int, stride: int = 1) -> pa.RecordBatch:
        ids = np.arange(offset, offset + n * stride, stride, dtype=np.int64)
        times = pa.array(self.time_us(ids)).view(TWEET.field("time").type)
        return pa.record_batch([*self.columns(ids).values(), times], schema=TWEET)


class Queries:
    """Makes queries; one in ten is of a user who never tweeted."""

    def __init__(self, rate: float, origin_us: int) -> None:
        self.us_per_row = 1_000_000 / rate
        self.origin_us = origin_us

    def users(self, ids: Integers) -> Integers:
        """Who asks."""
        return _spread(ids, 5, USERS + USERS // 9)

    def __call__(self, offset: int, n: int, stride: int = 1) -> pa.RecordBatch:
        ids = np.arange(offset, offset + n * stride, stride, dtype=np.int64)
        times = self.origin_us + (ids * self.us_per_row).astype(np.int64)
        return pa.record_batch(
            [ids, self.users(ids), pa.array(times).view(QUERY.field("time").type)], schema=QUERY
        )


def ads() -> pa.Table:
    """All ads: one per hashtag, and the house's own; prices in cents."""
    numbers = np.arange(TAGS + 1, dtype=np.int64)
    return pa.table(
        {
            "ad": numbers,
            "advertiser": np.where(numbers == HOUSE_AD, 0, 1 + numbers % (ADVERTISERS - 1)),
            "price": np.where(numbers == HOUSE_AD, 1, 5 + numbers * 7 % 20),
        }
    )


def recommend(tweets: DataFrame, epoch: int) -> DataFrame:
    """Collaborative filtering: for each user the hashtag, and so the ad, that suits best.

    A fit is called by the last epoch of its tweets.
    """
    from pyspark.ml.recommendation import ALS
    from pyspark.sql import functions as sql

    ratings = tweets.groupBy("user", "tag").agg(sql.count("*").cast("float").alias("rating"))
    als = ALS(
        rank=4,
        maxIter=3,
        userCol="user",
        itemCol="tag",
        ratingCol="rating",
        implicitPrefs=True,
        numUserBlocks=1,
        numItemBlocks=1,
        seed=1,
    )
    best = als.fit(ratings).recommendForAllUsers(1).select("user", sql.explode("recommendations"))
    return best.select(
        sql.col("user").cast("long").alias("user"),
        (sql.col("col.tag") + 1).cast("long").alias("ad"),
        sql.lit(epoch).cast("long").alias("fit"),
    )


class Popular(StatefulVertex):
    """The most frequent hashtags of each component; keeps nothing from epoch to epoch."""

    orderSensitive = False

    def work(self, time: Time, received: list[tuple[int, pa.RecordBatch]]) -> None:
        """All rows of a window come in one epoch."""
        rows = pa.Table.from_batches([batch for _, batch in received])
        self.sendBy(0, top_tags(rows), time)

    def snapshot(self) -> dict[str, pa.Table]:
        return {}

    def load(self, state: Any) -> None:
        """There is nothing to take back."""


def top_tags(rows: pa.Table) -> pa.RecordBatch:
    """Of (window, component, tag, tweets) the ``TOP`` tags of each component, most frequent first.

    >>> rows = {"window": [1, 1, 1], "component": [7, 7, 7], "tag": [3, 4, 3], "tweets": [1, 5, 1]}
    >>> [(row["rank"], row["tag"], row["tweets"]) for row in top_tags(pa.table(rows)).to_pylist()]
    [(0, 4, 5), (1, 3, 2)]
    """
    keys = ["window", "component", "tag"]
    sums = group_rows(rows, keys, [Fold("sum", "tweets", "tweets")], {})
    window, component, tag, tweets = (column.to_numpy() for column in sums.columns)
    order = np.lexsort((tag, -tweets, component, window))
    window, component, tag, tweets = (part[order] for part in (window, component, tag, tweets))
    first = np.ones(len(order), dtype=bool)
    first[1:] = (window[1:] != window[:-1]) | (component[1:] != component[:-1])
    starts = np.flatnonzero(first)
    rank = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    kept = rank < TOP
    columns = [part[kept] for part in (window, component, rank, tag, tweets)]
    return pa.record_batch(columns, schema=POPULAR)


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    seconds: float = 30.0
    tweets_per_s: float = 1_000.0
    queries_per_s: float = 400.0
    servers: int = 1
    """Shards of the serving part."""
    fit_every: str = "8 seconds"
    """How often Spark fits a model."""
    keep: int = 100_000
    """Versions of a table: all of them, for the check."""


def spark_fit(ratings: Stream, scale: Scale) -> Stream:
    """Recommendations of all ratings so far, now and then, by a job of Spark's."""
    return ratings.spark(
        recommend, schema=RECOMMENDATION, every=scale.fit_every, keep="all", name="recommend"
    )


@dataclass
class AdServing:
    """One run: the flow, its tables, and what came out of it."""

    scale: Scale
    origin: datetime
    folder: Path
    database: str
    fit: Callable[[Stream, Scale], Stream] = spark_fit
    """Makes recommendations (user, ad, fit) of a stream of (user, tag)."""
    flow: Flow = field(init=False)
    answers: Subscription = field(init=False)
    tables: dict[str, PublishedTable] = field(init=False, default_factory=dict)
    writer: str = "adserving"
    """Who bills; a new name for every run, if the database has balances already."""
    delivered: list[tuple[int, pa.Table]] = field(init=False, default_factory=list)
    """Arrival (ns) and rows of each epoch of answers."""

    def __post_init__(self) -> None:
        origin_us = round(self.origin.timestamp() * 1_000_000)
        self.tweets = Tweets(self.scale.tweets_per_s, origin_us)
        self.queries = Queries(self.scale.queries_per_s, origin_us)
        self.tweet_rows = int(self.scale.tweets_per_s * self.scale.seconds)
        self.query_rows = int(self.scale.queries_per_s * self.scale.seconds)
        self.flow = Flow("adserving")
        with self.flow.part("tweets"):
            tweets = self._tweets()
        with self.flow.part("components", Lazy(every="1 second")):
            components = self._components(tweets)
        with self.flow.part("hashtags", Lazy(every="1 second")):
            self._hashtags(tweets, components)
        with self.flow.part("recommendations", Batch()):
            self._recommendations(tweets)
        with self.flow.part("serving"):
            answers = self._serving()
            # Serving keeps nothing that could be sent again: billing must not have to ask for it.
            served = answers.persist(name="served")
        with self.flow.part("billing", Eager()):
            self._billing(served)
        self.answers = answers.subscribe(name="answers")

    # -- the parts -------------------------------------------------------------------------------

    def _tweets(self) -> Stream:
        return self.flow.generate(
            self.tweets,
            rate=self.scale.tweets_per_s,
            rows=self.tweet_rows,
            shards=1,
            startTime=self.origin,
            name="tweets",
        ).withWatermark("time", "0 seconds", idleEpochs=1_000_000)

    def _components(self, tweets: Stream) -> Stream:
        mentions = tweets.filter("user <> mentioned").select("user", "mentioned", "time")
        mentions.name("mentions")
        found = window_components(mentions, f"{SIZE_S} seconds", f"{SLIDE_S} seconds", shards=1)
        self._publish(found, "components", newest="window")
        return found

    def _hashtags(self, tweets: Stream, components: Stream) -> None:
        """Tweets per hashtag in each component of a window, and the most frequent ones."""
        window = F.window("time", f"{SIZE_S} seconds", f"{SLIDE_S} seconds")
        counts = tweets.groupBy(window, "user", "tag").agg(F.count("*").alias("tweets"))
        counts._stage.shards = 1
        ended = f"unix_micros(window.end) div {SLIDE_S * 1_000_000} - 1"
        tags = counts.name("tags").select(
            (f"{ended} AS window"), "user", "tag", "tweets", "window.end AS ended"
        )
        members = components.select(
            "window",
            "vertex AS user",
            "component",
            f"timestamp_micros((window + 1) * {SLIDE_S * 1_000_000}) AS member_until",
        ).name("members")
        tagged = tags.join(
            members, ["window", "user"], within="0 seconds", time=("ended", "member_until")
        )
        tagged._stage.shards = 1
        popular = tagged.name("tagged").process(
            Popular, POPULAR, partitionBy=["component"], shards=1
        )
        popular.name("hashtags").parquet(str(self.folder / "hashtags"), name="hashtag_files")
        best = popular.filter("rank = 0").select("window", "component", "tag AS popular_tag")
        self._publish(best, "popular", newest="window")

    def _recommendations(self, tweets: Stream) -> None:
        ratings = tweets.keyBy("user", shards=1).select("user", "tag").name("ratings")
        made = self.fit(ratings, self.scale)
        self._publish(made, "recommendations", newest="fit")

    def _serving(self) -> Stream:
        recommendations, components, popular = (
            self.tables[name] for name in ("recommendations", "components", "popular")
        )
        queries = self.flow.generate(
            self.queries,
            rate=self.scale.queries_per_s,
            rows=self.query_rows,
            shards=1,
            startTime=self.origin,
            name="queries",
        )
        noted = queries.asOf(recommendations, components, popular).name("noted")
        rest = ["id", "user", "time", *(table.column for table in self.tables.values())]
        with self.flow.part("serving", Ephemeral()):
            own = noted.keyBy("user", shards=self.scale.servers).lookup(
                recommendations, "user", how="left", columns=["ad"]
            )
            known = own.select(*rest, "ad AS own_ad").lookup(
                components, {"user": "vertex"}, how="left", columns=["component"]
            )
            near = known.lookup(recommendations, {"component": "user"}, how="left", columns=["ad"])
            return (
                near.withColumn("ad", f"coalesce(own_ad, ad, {HOUSE_AD}L)")
                .lookup(popular, "component", how="left", columns=["popular_tag"])
                .lookup(ads(), "ad")
                .name("serving")
            )

    def _billing(self, served: Stream) -> None:
        paid = served.keyBy("advertiser", shards=1)
        paid.select("advertiser", "price AS cents", "1L AS ads").name("charges").database(
            self.database,
            BALANCES,
            key="advertiser",
            add=["cents", "ads"],
            writer=self.writer,
            name="balances",
        )
        totals = served.groupBy("advertiser").agg(
            F.sum("price").alias("cents"), F.count("*").alias("ads")
        )
        totals._stage.shards = 1
        totals.name("statistics").database(
            self.database,
            STATISTICS,
            key="advertiser",
            writer=f"{self.writer} statistics",
            name="statistics_table",
        )

    def collect(self, on_rows: Callable[[int, int, pa.Table], None] | None = None) -> None:
        """Take answers until the flow ends; run it in a thread of its own."""
        for epoch, rows in self.answers:
            arrived_ns = self.answers.received_ns[epoch]
            self.delivered.append((arrived_ns, rows))
            if on_rows is not None:
                on_rows(epoch, arrived_ns, rows)

    def _publish(self, stream: Stream, name: str, newest: str | None = None) -> None:
        self.tables[name] = stream.toTable(name, newest=newest, keep=self.scale.keep)
