"""The ad-serving application in threads: every part is right while its nodes are killed."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.demos.adserving import RECOMMENDATION, TAGS, AdServing, Scale
from penstock.demos.adserving_check import check
from penstock.flow import Stream
from penstock.operators.stateful import StatefulVertex
from penstock.testing.local import start_local
from penstock.vertex import Time

WAIT_S = 60.0
SERVING = ("queries", "noted", "serving", "served")
SCALE = Scale(seconds=6, tweets_per_s=300, queries_per_s=100)


class Latest(StatefulVertex):
    """Recommends to everybody what they tagged last, a whole table now and then."""

    orderSensitive = False

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[int, int] = {}
        self.epochs = 0

    def work(self, time: Time, received: list[tuple[int, pa.RecordBatch]]) -> None:
        for _, batch in received:
            self.tags.update(zip(batch["user"].to_pylist(), batch["tag"].to_pylist(), strict=True))
        self.epochs += 1
        if self.epochs % 2 == 0:
            users = sorted(self.tags)
            rows = [users, [self.tags[user] % TAGS + 1 for user in users], [0.0] * len(users)]
            self.sendBy(0, pa.record_batch(rows, schema=RECOMMENDATION), time)

    def snapshot(self) -> dict[str, Any]:
        return {"tags": dict(self.tags), "epochs": self.epochs}

    def load(self, state: Any) -> None:
        self.tags, self.epochs = dict(state["tags"]), state["epochs"]


def latest(ratings: Stream, scale: Scale) -> Stream:
    return ratings.process(Latest, RECOMMENDATION).name("recommend")


def test_every_part_is_right_while_nodes_of_each_are_killed(tmp_path: Path) -> None:
    origin = datetime.fromtimestamp(time.time() + 0.5, UTC)
    run = AdServing(SCALE, origin, tmp_path, f"sqlite:///{tmp_path}/billing.db", latest)
    query = start_local(
        run.flow,
        hosts=6,
        standby=1,
        parallelism=1,
        epochInterval="50 ms",
        checkpointLocation=str(tmp_path / "store"),
    )
    collector = threading.Thread(target=run.collect, daemon=True)
    collector.start()
    victims = ("components[0]", "charges[0]", "serving[1]", "hashtags[0]")
    try:
        for number, victim in enumerate(victims, 1):
            time.sleep(0.8)
            if query.isActive:
                query.kill(victim)
                deadline = time.monotonic() + WAIT_S
                while query.isActive and not _recovered(query.recoveries, number):
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    collector.join(5)
    outcome = check(run)
    assert outcome.right, outcome
    assert outcome.queries == 600
    assert outcome.windows >= 6
    assert outcome.fits >= 2
    assert len(query.recoveries) >= 2
    for one in query.recoveries:
        if not any(name.startswith("serving") for name in one["lost"]):
            # Whoever makes the tables or writes the bills goes back alone.
            assert not [name for name in one["restarted"] if name.startswith(SERVING)], one


def _recovered(recoveries: list[dict[str, Any]], number: int) -> bool:
    return len(recoveries) >= number and all(one["recovered_us"] for one in recoveries)
