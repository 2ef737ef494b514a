"""The functions of words.toml, and the same flow started from Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock import Flow
from penstock.engine.spark.session import local_session
from penstock.topology import load_topology

TEXT = ["water", "moves", "the", "wheel", "that", "lifts", "the", "water"]
COUNTS: dict[str, int] = {}
"""The newest count of each word, kept by the driver."""


def words(offset: int, n: int) -> pa.RecordBatch:
    """The text, over and over."""
    return pa.record_batch({"word": [TEXT[i % len(TEXT)] for i in range(offset, offset + n)]})


def shout(batches: Iterator[pa.RecordBatch], *, mark: str) -> Iterator[pa.RecordBatch]:
    """Words in capitals, with a mark."""
    for batch in batches:
        loud = pc.binary_join_element_wise(pc.utf8_upper(batch["word"]), mark, "")
        yield pa.record_batch({"word": loud})


def keep(rows: pa.Table, epoch: int) -> None:
    """Remember the counts."""
    COUNTS.update({row["word"]: row["count"] for row in rows.to_pylist()})


def flow() -> Flow:
    """What words.toml describes."""
    return load_topology(Path(__file__).with_name("words.toml")).flow


def main() -> None:
    """Run it and check the counts."""
    topology = load_topology(Path(__file__).with_name("words.toml"))
    spark = local_session("words", hosts=2)
    try:
        topology.flow.start(spark, **topology.options).awaitTermination(100)
    finally:
        spark.stop()
    expected = Counter(TEXT[i % len(TEXT)] for i in range(20_000))
    wanted = {f"{word.upper()}!": count for word, count in expected.items() if len(word) > 3}
    [module] = topology.flow.modules
    found = module.COUNTS
    assert found == wanted, found
    print(f"right: {found}")


if __name__ == "__main__":
    main()
