"""What a node works on, told to the controller in case the process does not survive it.

Two occasions: a node that was lost several times in a row says before every call into a stage what
the call is about; and a function that ends the process with ``os._exit`` is made to say so first.
A process that is killed from outside says nothing: then the first is all that is known.

A stage that may skip rows says which ones it is called with, by their digests, and when a call is
over, so that what happens between two calls is not put down to rows.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.core.causal.diffs import COMPLETION, Diff
from penstock.core.causal.times import show
from penstock.core.control.deadly_rows import Care
from penstock.core.control.host_reports import LastWords, StageCalled
from penstock.core.control.roster import DRIVER
from penstock.core.node.causal import CausalMachine
from penstock.engine.host.chain_stage import StageRunner
from penstock.engine.host.host import Host
from penstock.engine.host.node import NodeRunner
from penstock.operators.row_guard import RowGuard
from penstock.operators.skipping import SkippingVertex
from penstock.planning.physical import PhysicalPlan

__all__ = ["Announcer", "exit_words", "speak_before_exit", "take_care", "words_of"]

HEARD_S = 1.0
"""How long to wait until the controller has heard."""

Tell = Callable[[StageCalled], None]


def words_of(plan: PhysicalPlan, runner: NodeRunner, stage: StageRunner) -> LastWords:
    """Which stage is called, in which node, and about which rows."""
    machine = runner.machine
    made_from = machine.working_on if isinstance(machine, CausalMachine) else ()
    rows = _rows(plan, made_from) or _rows_given(plan, runner)
    return LastWords(stage.place.stage, runner.name, runner.chain.now.epoch, rows)


@dataclass(frozen=True)
class Announcer:
    """Tells the controller of every call, and waits until it has heard.

    Until the node has completed an epoch after ``had``, the last one that it had before it was
    lost: then it has survived what it was lost by.  What it replays it has survived, too.
    """

    host: Host
    plan: PhysicalPlan
    tell: Tell
    runner: NodeRunner
    had: int

    def is_on(self) -> bool:
        """Whether the node's next call may be its last one."""
        machine = self.runner.machine
        if self.host.starting is self.runner:  # a source reads again what was perhaps not survived
            return True
        if machine.completed_epoch > self.had:
            self.runner.chain.on_call = None
            return False
        return not (isinstance(machine, CausalMachine) and machine.replaying)

    def before(self, stage: StageRunner, digests: Sequence[int] = ()) -> None:
        """A stage is about to be called, with rows that have these digests if that matters."""
        if self.is_on():
            words = words_of(self.plan, self.runner, stage)
            _say(self.host, self.tell, words._replace(digests=tuple(digests)))

    def after(self) -> None:
        """The call was survived."""
        _say(self.host, self.tell, LastWords())


def take_care(care: Care, announcer: Announcer) -> None:
    """Let a node that is about to start know what its predecessors did not survive."""
    if care.announces:
        announcer.runner.chain.on_call = announcer.before
    for stage in announcer.runner.chain.stages:
        if isinstance(stage.vertex, SkippingVertex):
            name = stage.place.stage
            stage.vertex.guard = RowGuard(
                [row for row in care.skipped if row.stage == name],
                next((one for one in care.suspects if one.stage == name), None),
                _Watch(announcer, stage) if care.announces else None,
            )


@dataclass(frozen=True)
class _Watch:
    """An announcer, as a stage that may skip rows sees it."""

    announcer: Announcer
    stage: StageRunner

    def is_on(self) -> bool:
        return self.announcer.is_on()

    def calling(self, digests: Sequence[int]) -> None:
        self.announcer.before(self.stage, digests)

    def survived(self) -> None:
        self.announcer.after()


def exit_words(host: Host, plan: PhysicalPlan, tell: Tell, status: int) -> None:
    """A function ends the process from inside a stage: tell the controller."""
    words, stage = LastWords(), _called_stage()
    for runner in (*host.nodes.values(), host.starting):
        if runner is not None and stage is not None and stage in runner.chain.stages:
            words = words_of(plan, runner, stage)
            if isinstance(stage.vertex, SkippingVertex):
                words = words._replace(digests=stage.vertex.called_with())
    _say(host, tell, words._replace(status=status))


@contextmanager
def speak_before_exit(host: Host, plan: PhysicalPlan, tell: Tell) -> Iterator[None]:
    """Meanwhile, let ``os._exit`` say something if a function of the flow calls it."""
    leave, loop, process = os._exit, threading.get_ident(), os.getpid()

    def told_exit(status: int) -> None:
        try:
            here = threading.get_ident() == loop and os.getpid() == process
            if here and _called_stage() is not None:
                exit_words(host, plan, tell, status)
        finally:
            leave(status)

    os._exit = told_exit  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave


def _say(host: Host, tell: Tell, words: LastWords) -> None:
    tell(StageCalled(words))
    host.transport.uncork()
    host.transport.drain(HEARD_S, DRIVER)


def _called_stage() -> StageRunner | None:
    """The stage whose function is being called, innermost."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not StageRunner.guard.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals["self"]


def _rows(plan: PhysicalPlan, made_from: Diff) -> str:
    """What a step is made from: a source's rows, if the chain of messages says which."""
    if not made_from:
        return ""
    first, last = made_from[0], made_from[-1]
    if first.node == COMPLETION:
        return f"the end of epoch {first.epoch}"
    if last.node < COMPLETION:
        end, start = last.stamp
        node = -2 - last.node
        chain = plan.chain_of_node(node)
        source = f"{chain.stages[0].name}[{node - chain.first_node}]"
        return f"rows {start} to {end - 1} of {source}"
    return f"message {show(first.stamp)} of {plan.node_name(first.node)}"


def _rows_given(plan: PhysicalPlan, runner: NodeRunner) -> str:
    """Rows of nodes that keep no chains of messages: how many, and where they come from."""
    rows, source = runner.chain.rows_given, runner.source
    if not rows:
        return ""
    if source is None:
        return "" if runner.sender is None else f"{rows} rows from {plan.node_name(runner.sender)}"
    position = source.reader.position()
    name = f"{source.stage}[{runner.node - plan.chain_of_node(runner.node).first_node}]"
    if isinstance(position, int):
        return f"rows {position - rows} to {position - 1} of {name}"
    return f"{rows} rows of {name}, up to {position}"
