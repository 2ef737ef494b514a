"""What a node works on, told to the controller in case the process does not survive it.

Two occasions: a node that was lost several times in a row says before every call into a stage what
the call is about; and a function that ends the process with ``os._exit`` is made to say so first.
A process that is killed from outside says nothing: then the first is all that is known.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.core.causal.diffs import COMPLETION, Diff
from penstock.core.causal.times import show
from penstock.core.control.host_reports import LastWords, StageCalled
from penstock.core.control.roster import DRIVER
from penstock.core.node.causal import CausalMachine
from penstock.engine.host.chain_stage import StageRunner
from penstock.engine.host.host import Host
from penstock.engine.host.node import NodeRunner
from penstock.planning.physical import PhysicalPlan

__all__ = ["announce", "exit_words", "speak_before_exit", "words_of"]

HEARD_S = 1.0
"""How long to wait until the controller has heard."""

Tell = Callable[[StageCalled], None]


def words_of(plan: PhysicalPlan, runner: NodeRunner, stage: StageRunner) -> LastWords:
    """Which stage is called, in which node, and about which rows."""
    machine = runner.machine
    made_from = machine.working_on if isinstance(machine, CausalMachine) else ()
    rows = _rows(plan, made_from)
    return LastWords(stage.place.stage, runner.name, runner.chain.now.epoch, rows)


def announce(host: Host, plan: PhysicalPlan, tell: Tell, runner: NodeRunner, had: int) -> None:
    """Tell the controller of every call, and wait until it has heard.

    Until the node has completed an epoch after ``had``, the last one that it had before it was
    lost: then it has survived what it was lost by.  What it replays it has survived, too.
    """

    def before(stage: StageRunner) -> None:
        machine = runner.machine
        if machine.completed_epoch > had:
            runner.chain.on_call = None
        elif not (isinstance(machine, CausalMachine) and machine.replaying):
            _say(host, tell, words_of(plan, runner, stage))

    runner.chain.on_call = before


def exit_words(host: Host, plan: PhysicalPlan, tell: Tell, status: int) -> None:
    """A function ends the process from inside a stage: tell the controller."""
    words, stage = LastWords(), _called_stage()
    for runner in list(host.nodes.values()):
        if stage is not None and stage in runner.chain.stages:
            words = words_of(plan, runner, stage)
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
