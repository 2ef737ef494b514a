"""Seeds that once broke an invariant, each named after what it taught.

The choices of the simulator follow from the seed, so a change of the simulator changes what these
seeds do; the mutants in ``test_mutants.py`` keep the lessons themselves.
"""

import pytest

from penstock.testing.simulator.run import run_seed

SCENARIOS = {
    "a restarted node counts as failed until its edges are open": (65, 2177, 2471),
    "a stamp that a sibling knows from an old epoch is never given away again": (459,),
    "a mark keeps its place before rows that a child handled after completing": (109, 861, 1230),
    "rows after a forgotten mark are not forced before a completion": (1253, 1748, 1081),
    "a restarted source makes new batches after all positions": (358, 3697),
    "an epoch is completed no later than the ones after it": (1314, 2182, 2409),
    "a node's writes reach the store in order": (16841,),
    "rows never overtake rows of the same sender": (6672, 7064, 18169),
    "rows before a target that was started after have a stamp of their own": (18193,),
    "what a step noted before a clean checkpoint is recalled after it": (15044,),
    "a checkpoint that was due in a replay is taken at its end": (6045,),
    "a stamp in the log of a loop's node is never given away again": (131, 238, 457, 543, 874),
}

MIXED = {
    "a floor that was reported stays while the edge is closed": (1371,),
    "marks are kept until the child knows the watermark where it stands": (600, 1262),
    "a sink and a source over one log are in regions that wait for no other": (48,),
    "who holds its input ends an epoch that no source ends": (58, 227, 249, 3279, 5510),
    "who is fed only round a loop is waited for, and waits for no other at the end": (7155,),
    "a completion that no other node knows stays before rows that came after its marks": (40146,),
    "where all start together, who is ahead keeps what the last one has": (8685,),
    "an epoch that no source has cut is no sign of a lost log": (1800,),
    "rows of a later epoch do not end the ones before": (988205, 989493),
    "rows that go round a loop were let in before a hold": (988296,),
    "a rollback that the controller did not live to record is none": (5161,),
    "a node that starts at its end holds at no multiple before": ("rough:long:1066236719",),
}

LIVES = {
    "a host that is ready after the flow was stopped changes nothing": ("hosts:137",),
    "a host that follows and is lost before the start follows no more": ("hosts:632",),
    "a host may have raised unheard when sources begin to read": ("hosts:699004998199",),
    "a node has completed the epoch that it starts after": ("hosts:507294367",),
    "only what this driver has heard of is recorded": ("hosts:911043189",),
    "who is lost with others that are lost too often says what it does": ("hosts:911043929",),
    "who has ended durably can do no more than go on": ("planned:rough:201",),
}

LOOPS = {
    "rows from inside of a loop wait for their block": ("two_loops:0",),
    "a checkpoint that a replay puts off belongs to no block": ("two_loops:mixed:7",),
    "a block that a replay has passed is saved afterwards": ("layers:mixed:41002333",),
    "rows after all that a replay repeats wait for the checkpoint": ("layers:mixed:1066234758",),
    "rows after a repeated epoch that senders skip come in": (
        "two_loops:mixed:899",
        "two_loops:mixed:3609",
    ),
    "a restarted gate counts with its watermark": ("two_loops:mixed:11", "two_loops:160"),
}

PLANNED = {
    "a log that begins at the end of a stream serves a child at its end": ("planned:2570165866",),
    "what nobody knows comes after what is settled": ("planned:507295838",),
    "a stamp that only a folded fact names is never given away again": (
        "layers:mixed:rough:long:194615040",
    ),
    "what was for a dead process keeps nothing from its successor": (
        "layers:mixed:rough:long:524438397",
    ),
    "who cannot be heard cannot say who is silent": ("layers:rough:long:502507608",),
    "a plan that changes again and again ends with the flow": ("planned:long:37940988",),
    "a driver that slept believes no old report": ("layers:rough:long:967844698490",),
}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, id=f"{name}-{seed}")
        for name, seeds in SCENARIOS.items()
        for seed in seeds
    ],
)
def test_scenario(seed: int) -> None:
    outcome = run_seed(f"layers:{seed}")
    assert outcome.violation is None


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, id=f"{name}-{seed}") for name, seeds in MIXED.items() for seed in seeds],
)
def test_scenario_of_mixed_regimes(seed: int | str) -> None:
    outcome = run_seed(f"layers:mixed:{seed}")
    assert outcome.violation is None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, id=f"{name}-{one}")
        for name, names in {**LOOPS, **PLANNED, **LIVES}.items()
        for one in names
    ],
)
def test_scenario_by_name(name: str) -> None:
    assert run_seed(name).violation is None


def test_a_log_whose_floor_has_an_epoch_serves_no_child_before_it() -> None:
    outcome = run_seed("planned:753770043")
    assert outcome.violation is None


def test_steps_of_complete_epochs_say_nothing_of_rows_that_came_before_them() -> None:
    outcome = run_seed("planned:522249452")
    assert outcome.violation is None


@pytest.mark.parametrize("name", ["layers:mixed:269", "layers:mixed:101", "layers:mixed:181"])
def test_what_rollbacks_by_hand_and_damage_taught(name: str) -> None:
    outcome = run_seed(name)
    assert outcome.violation is None
