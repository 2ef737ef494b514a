"""Every mutant of the protocol is caught; the real protocol passes the same seeds."""

import pytest

from penstock.testing.simulator.mutants import MUTANTS, Mutant
from penstock.testing.simulator.run import caught_by, run_seed

FIRST_SEEDS = {
    "no-fence": 315,
    "no-store-fence": 53,
    "checkpoint-without-diffs": 528,
    "keeps-half-a-step": 142,
    "reuses-stamps": 577,
    "no-closure": 64,
    "recovered-too-soon": 795,
    "marks-anywhere": 533,
}
"""Where to start looking, so that the rarer ones are found soon."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    seed = caught_by(mutant, FIRST_SEEDS.get(mutant.name, 0))
    assert seed is not None
    assert run_seed(seed).violation is None


def test_mutants_have_names_and_say_what_they_leave_out() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 8
    assert all(mutant.leaves_out for mutant in MUTANTS)
