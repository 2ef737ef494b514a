"""Every mutant of the delivery protocol is caught; the real protocol passes the same seeds."""

import pytest

from penstock.testing.simulator_delivery.mutants import MUTANTS, Mutant
from penstock.testing.simulator_delivery.run import caught_by, run

FIRST_SEEDS = {"no-fence": 1075, "releases-too-early": 30, "nothing-again": 30}
"""Where to start looking, so that the rarer ones are found soon."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    seed = caught_by(mutant, FIRST_SEEDS.get(mutant.name, 0))
    assert seed is not None
    assert run(seed).violation is None


def test_mutants_have_names_and_say_what_they_leave_out() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 6
    assert all(mutant.leaves_out for mutant in MUTANTS)
