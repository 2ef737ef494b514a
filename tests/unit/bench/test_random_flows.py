"""Flows drawn at random: every piece's model equals what the piece does when nobody disturbs it."""

import json
import random

from penstock.bench.random_flows.draw import Drawn, DrawnPiece, draw
from penstock.bench.random_flows.pieces import SourcePiece
from penstock.bench.random_flows.shrink import shrink

ROWS = 900


def source(number: int, seed: int) -> DrawnPiece:
    drawn = SourcePiece().draw(random.Random(seed))
    quick = {**drawn, "number": number, "rate": None, "rows": ROWS, "repeats": 5}
    return DrawnPiece("source", (), quick)


def test_what_is_drawn_depends_on_the_seed_alone_and_survives_json() -> None:
    for seed in range(20):
        drawn = draw(seed)
        assert drawn == draw(seed)
        assert Drawn.from_json(json.loads(json.dumps(drawn.to_json()))) == drawn
        assert len(drawn.lives()) == 1 + sum(one.kind in ("driver", "stop") for one in drawn.faults)


def test_a_flow_is_shrunk_to_what_makes_it_fail() -> None:
    drawn = next(
        one for one in map(draw, range(100)) if "join" in str(one.shape()) and len(one.steps) > 6
    )

    def has_a_join(one: Drawn) -> bool:
        return any(step.piece == "join" for step in one.steps)

    smallest = shrink(drawn, has_a_join)
    pieces = [step.piece for step in smallest.steps if step.piece != "source"]
    assert pieces[0] == "join"
    assert len(pieces) == 2
    assert (smallest.faults, smallest.regime, smallest.options["hosts"]) == ((), None, 1)
