"""Mutants of the protocol: each leaves out one thing, and the simulator must notice.

A mutant that survives many seeds means that the simulator does not test that part of the protocol
(or that the part is not needed).  Each names what it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.causal.retention import keep_from, low_epochs
from penstock.core.machine.causal import CausalMachine
from penstock.core.machine.causal_loop import CausalLoop
from penstock.core.machine.causal_source import CausalSource
from penstock.core.machine.global_hold import GlobalHold
from penstock.core.machine.recovery import RecoveryMachine
from penstock.testing.simulator import broken_guarantees as guarantees
from penstock.testing.simulator import broken_nodes as nodes
from penstock.testing.simulator import broken_recovery as recovery
from penstock.testing.simulator import broken_regimes as regimes

__all__ = ["MUTANTS", "REAL", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """The machines of a run: the real ones, or slightly wrong ones."""

    name: str
    leaves_out: str = ""
    machine: type[CausalMachine] = CausalMachine
    source: type[CausalSource] = CausalSource
    recovery: type[RecoveryMachine] = RecoveryMachine
    loop: type[CausalLoop] = CausalLoop
    stale_writes: bool = False
    publishes_at_once: bool = False
    keeps_rows: bool = False
    lows: Callable[..., dict[int, int]] = low_epochs
    keeps: Callable[..., dict[int, int]] = keep_from
    hold: type[GlobalHold] = GlobalHold
    mixed: bool = False
    """Whether to look among flows of mixed regimes."""
    promised: bool = False
    """Whether to look among flows that promise less than exactly once."""
    reads_again: bool = False
    seed: int = 0
    """Where to start looking, so that the rarer ones are found soon."""


REAL = Mutant("real")

MUTANTS: tuple[Mutant, ...] = (
    Mutant("no-fence", "receivers refuse other incarnations (14)", nodes.NoFence, seed=256),
    Mutant("no-store-fence", "the store refuses other incarnations (14)", stale_writes=True),
    Mutant("no-dedup", "positions on edges (16)", nodes.NoDedup, nodes.NoDedupSource),
    Mutant(
        "resume-too-late",
        "resume right after t (1)",
        nodes.ResumeOneTooLate,
        nodes.ResumeOneTooLateSource,
    ),
    Mutant("arrival-order", "the replay rule (2)", nodes.ArrivalOrder),
    Mutant("output-before-open", "two phases (15)", nodes.OpenAtOnce),
    Mutant("nothing-again", "send again to live children (16)", nodes.NothingAgainToTheLiving),
    Mutant("unheld-output", "determinants before output (9)", nodes.UnheldOutput),
    Mutant("no-determinants", "determinants (9)", nodes.NoDeterminants),
    Mutant("checkpoint-without-payloads", "logs in checkpoints (8)", nodes.NoLogsInCheckpoints),
    Mutant(
        "checkpoint-without-diffs", "logs in checkpoints (8)", nodes.ForgetfulCheckpoints, seed=107
    ),
    Mutant(
        "keeps-half-a-step",
        "a fence drops what is unfinished (14)",
        nodes.KeepsFencedInput,
        seed=131,
    ),
    Mutant("reuses-stamps", "dense times after all known ones (1)", nodes.ReusesStamps),
    Mutant("states-nothing", "senders restate their watermarks", nodes.StatesNothing),
    Mutant("states-too-soon", "watermarks are restated when they are certain", nodes.StatesTooSoon),
    Mutant(
        "watermark-ahead",
        "a checkpoint has the watermark of its epoch",
        nodes.WatermarkAhead,
        seed=4119,
    ),
    Mutant(
        "keeps-watermarks", "who keeps a watermark has it in checkpoints", nodes.KeepsWatermarks
    ),
    Mutant(
        "forgets-begun-epochs",
        "an epoch of which somebody has rows is the next to be cut",
        source=nodes.ForgetsBegunEpochs,
    ),
    Mutant("truncates-too-far", "one watermark (12)", recovery=recovery.TruncatesTooFar),
    Mutant("forgets-marks", "the newest mark behind a truncation is kept", nodes.ForgetsMarks),
    Mutant("no-closure", "closure (6)", recovery=recovery.NoClosure),
    Mutant("direct-children-only", "all witnesses (5)", recovery=recovery.OnlyDirectChildren),
    Mutant("forgets-unfinished", "failed until recovered (4)", recovery=recovery.ForgetsUnfinished),
    Mutant(
        "recovered-too-soon",
        "failed until opened (4)",
        recovery=recovery.RecoveredTooSoon,
        seed=224,
    ),
    Mutant(
        "marks-anywhere",
        "marks overtake rows, and completions keep their place (2); one alone seems to do",
        nodes.ForcesLaterRows,
        recovery=recovery.NoDeadlines,
        seed=926,
    ),
    Mutant("draws-again", "replays recall what was noted", nodes.DrawsAgain, seed=312),
    Mutant("loop-nodes-alone", "a loop fails as one (20)", recovery=recovery.LoopNodesAlone),
    Mutant(
        "loop-epochs-apart",
        "a loop starts at one epoch (20)",
        recovery=recovery.LoopNodesAtOwnEpochs,
    ),
    Mutant(
        "loop-keeps-clock",
        "a loop's checkpoints have nothing of later epochs (20)",
        loop=nodes.LoopKeepsItsClock,
    ),
    Mutant(
        "loop-forgets-stamp",
        "a stamp in the log is never given away again (1)",
        loop=nodes.LoopForgetsItsStamp,
    ),
    Mutant(
        "trusts-the-unrepeatable",
        "who holds what an unrepeatable node made goes back with it (10)",
        recovery=recovery.TrustsTheUnrepeatable,
        seed=122,
    ),
    Mutant(
        "keeps-later-epochs",
        "who may go back has nothing of later epochs in checkpoints (10)",
        nodes.KeepsLaterEpochs,
        seed=4414,
    ),
    Mutant(
        "publishes-at-once",
        "below an unrepeatable node only what nobody goes back behind is published (12b)",
        publishes_at_once=True,
    ),
    Mutant("starts-too-late", "the least position (5)", recovery=recovery.StartsTooLate),
    Mutant(
        "forgets-the-unsent",
        "without a log, what was not sent is kept",
        regimes.ForgetsTheUnsent,
        mixed=True,
    ),
    Mutant(
        "floor-stays",
        "without a log, the floor rises",
        regimes.FloorStays,
        regimes.SourceFloorStays,
        mixed=True,
    ),
    Mutant(
        "forgets-behind-a-fence",
        "the floor stays while an edge is closed",
        regimes.ForgetsBehindAFence,
        mixed=True,
        seed=1371,
    ),
    Mutant(
        "forgets-untold-marks",
        "marks are kept until the child knows the watermark where it stands",
        regimes.ForgetsUntoldMarks,
        mixed=True,
        seed=728,
    ),
    Mutant(
        "forgets-within-epochs",
        "what checkpoints within an epoch may have to send again is kept until it ends",
        regimes.ForgetsWithinEpochs,
        mixed=True,
        seed=1210,
    ),
    Mutant(
        "unclean-checkpoint",
        "a clean checkpoint has no rows of later epochs",
        keeps_rows=True,
        mixed=True,
        seed=27,
    ),
    Mutant(
        "starts-within-epochs",
        "clean nodes start at the end of an epoch",
        recovery=regimes.StartsWithinEpochs,
        mixed=True,
        seed=147,
    ),
    Mutant("low-epoch-of-others", "low epochs are by region", lows=regimes.one_region, mixed=True),
    Mutant(
        "low-epoch-as-if-logged",
        "without a log, a checkpoint needs children that have come as far",
        lows=regimes.as_if_logged,
        mixed=True,
    ),
    Mutant(
        "keeps-one-too-few",
        "every checkpoint that may be asked for is kept",
        keeps=regimes.newest_only,
        mixed=True,
    ),
    Mutant(
        "resumes-too-soon",
        "a global checkpoint is everybody's before rows go on",
        hold=regimes.ResumesTooSoon,
        mixed=True,
        seed=54,
    ),
    Mutant(
        "eager-at-once",
        "what an eager node makes leaves after its checkpoint",
        regimes.EagerAtOnce,
        mixed=True,
    ),
    Mutant(
        "forgets-limits",
        "a rollback by hand goes back as far as was asked for",
        recovery=regimes.ForgetsLimits,
        mixed=True,
    ),
    Mutant(
        "reads-again",
        "at most once, how far a source has read is noted before the rows leave",
        reads_again=True,
        promised=True,
        seed=4680,
    ),
    Mutant(
        "starts-in-the-past",
        "at most once, who is lost starts after all that anybody knows of",
        recovery=guarantees.StartsInThePast,
        promised=True,
    ),
    Mutant(
        "starts-in-the-present",
        "at least once, who is lost is sent its open epochs again",
        recovery=guarantees.StartsInThePresent,
        promised=True,
    ),
)
