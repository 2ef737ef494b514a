"""Rows that a stage is kept from, and calls that are announced."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.core.control.deadly_rows import SkippedRow, Suspects
from penstock.operators.row_guard import RowGuard, digests_of


class Heard:
    """A watch that remembers what it was told; "ok" after calls that were survived."""

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self.said: list[Sequence[int] | str] = []

    def is_on(self) -> bool:
        return self.on

    def calling(self, digests: Sequence[int]) -> None:
        self.said.append(digests)

    def survived(self) -> None:
        self.said.append("ok")


def batch_of(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def digest(n: int) -> int:
    (found,) = digests_of(0, batch_of(n))
    return found


def parts(
    guard: RowGuard, batch: pa.RecordBatch, epoch: int = 5
) -> tuple[list[list[int]], list[tuple[int, str]]]:
    failed: list[tuple[pa.RecordBatch, str]] = []
    called = [part["n"].to_pylist() for part in guard.parts(0, batch, epoch, failed)]
    return called, [(row["n"][0].as_py(), error) for row, error in failed]


def test_rows_to_pass_over_do_not_reach_the_stage_from_their_epoch_on() -> None:
    guard = RowGuard([SkippedRow("s", digest(3), 5, "exit status 1")], None, None)
    assert parts(guard, batch_of(1, 3, 2, 3)) == (
        [[1, 2]],
        [(3, "HostLostError: exit status 1")] * 2,
    )
    assert parts(guard, batch_of(1, 3), epoch=4) == ([[1, 3]], [])
    assert parts(guard, batch_of(3)) == ([], [(3, "HostLostError: exit status 1")])
    assert parts(guard, batch_of()) == ([[]], [])


def test_suspects_are_called_in_pieces_and_others_as_they_come() -> None:
    heard = Heard()
    suspects = Suspects("s", tuple(map(digest, (4, 5, 6))), piece=2)
    called, _ = parts(RowGuard([], suspects, heard), batch_of(1, 2, 4, 5, 6, 3, 5))
    assert called == [[1, 2], [4, 5], [6], [3], [5]]
    assert heard.said == [*(digests_of(0, batch_of(*rows)) for rows in called), "ok"]


def test_nothing_is_announced_when_nothing_is_to_be_feared() -> None:
    heard = Heard(on=False)
    suspects = Suspects("s", (digest(1),), piece=1)
    assert parts(RowGuard([], suspects, heard), batch_of(1, 2)) == ([[1, 2]], [])
    assert heard.said == []


def test_a_digest_is_of_the_values_alone() -> None:
    kinds = pa.schema({"xs": pa.list_(pa.int64()), "text": pa.string(), "at": pa.timestamp("us")})
    rows = [{"xs": [1, 2], "text": "a", "at": 5}, {"xs": None, "text": None, "at": None}]
    whole = pa.RecordBatch.from_pylist(rows * 2, schema=kinds)
    assert digests_of(0, whole.slice(2, 1)) == digests_of(0, whole.slice(0, 1))
    assert len(digests_of(0, whole)) == 2
    assert digests_of(1, whole) != digests_of(0, whole)
    assert max(digests_of(0, whole)) < 1 << 64
