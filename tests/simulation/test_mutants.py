"""Every mutant of the protocols is caught; the real protocols pass the same seeds."""

import pytest

from penstock.core.control.retention import oldest_kept
from penstock.testing.mutants.catch import MUTANTS, caught_by, violation
from penstock.testing.mutants.mutant import Mutant, applied
from penstock.testing.simulator import store

SEEDS_MAX = 20
"""The tests start from a seed that is known to catch; ``penstock simulate --mutants`` searches."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    seed = caught_by(mutant, SEEDS_MAX)
    assert seed is not None
    assert violation(mutant.flows, seed) is None


def test_mutants_have_names_and_say_what_they_leave_out() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 80
    assert all(mutant.leaves_out for mutant in MUTANTS)


def test_a_mutant_is_gone_when_it_was_tried() -> None:
    target = "penstock.core.control.retention:oldest_kept"
    broken = Mutant("broken", "everything", {target: lambda real, *args: 7})
    with applied(broken):
        assert store.oldest_kept is not oldest_kept
        assert store.oldest_kept({}, 0) == 7
    assert store.oldest_kept is oldest_kept
