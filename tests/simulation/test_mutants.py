"""Every mutant of the protocol is caught; the real protocol passes the same seeds."""

import pytest

from penstock.testing.simulator.mutants import MUTANTS, Mutant
from penstock.testing.simulator.run import caught_by, run_seed


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    seed = caught_by(mutant, mutant.seed)
    assert seed is not None
    assert run_seed(seed, mixed=mutant.mixed).violation is None


def test_mutants_have_names_and_say_what_they_leave_out() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 8
    assert all(mutant.leaves_out for mutant in MUTANTS)
