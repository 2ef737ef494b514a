"""Flows drawn at random: every piece's model equals what the piece does when nobody disturbs it."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.bench.random_flows.draw import Drawn, DrawnPiece, build, models
from penstock.bench.random_flows.pieces import EVENT_PIECES, FlowPiece, SourcePiece
from penstock.bench.random_flows.results import RESULTS
from penstock.bench.random_flows.run import compare
from penstock.testing.local import run_local

ROWS = 900


def source(number: int, seed: int) -> DrawnPiece:
    drawn = SourcePiece().draw(random.Random(seed))
    quick = {**drawn, "number": number, "rate": None, "rows": ROWS, "repeats": 5}
    return DrawnPiece("source", (), quick)


def flow_with(piece: FlowPiece, seed: int) -> Drawn:
    """Two sources, the piece, and a sink behind it if it has none."""
    inputs = tuple(range(piece.inputs))
    middle = DrawnPiece(piece.name, inputs, piece.draw(random.Random(seed)))
    end = [DrawnPiece("rows", (2,))] if piece in EVENT_PIECES else []
    return Drawn(seed, (source(0, seed), source(1, seed + 1), middle, *end), {}, None, ())


@pytest.mark.parametrize("piece", [*EVENT_PIECES, *RESULTS], ids=lambda piece: piece.name)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_pieces_model_equals_the_piece(piece: FlowPiece, seed: int, tmp_path: Path) -> None:
    drawn = flow_with(piece, seed)
    if piece.inputs < 2:  # the other source leads nowhere
        keep = [drawn.steps[0], replace(drawn.steps[2], inputs=(0,))]
        keep += [replace(step, inputs=(1,)) for step in drawn.steps[3:]]
        drawn = replace(drawn, steps=tuple(keep))
    assert all(len(next(iter(columns.values()))) for columns in models(drawn.steps))
    run_local(build(drawn, tmp_path), parallelism=2, checkpointLocation=str(tmp_path / "store"))
    assert compare(drawn, tmp_path) == {}


def test_a_missing_and_a_doubled_row_are_found(tmp_path: Path) -> None:
    drawn = flow_with(RESULTS[0], 3)
    drawn = replace(drawn, steps=(drawn.steps[0], DrawnPiece("rows", (0,))))
    run_local(build(drawn, tmp_path))
    more = replace(drawn, steps=(source(0, 3), *drawn.steps[1:]))
    more.steps[0].parameters["rows"] = ROWS + 1
    assert compare(more, tmp_path)["rows1"]["missing"] == 1
    more.steps[0].parameters["rows"] = ROWS - 1
    assert compare(more, tmp_path)["rows1"]["extra"] == 1
