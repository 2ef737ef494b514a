"""Simulated hosts: processes that register, run nodes, watch each other, follow and end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.control.deadly_rows import Care
from penstock.core.control.host_orders import CheckpointNews
from penstock.core.control.host_reports import LastWords
from penstock.core.control.membership_events import (
    HostRaised,
    HostSilent,
    HostWorking,
    LoadsMeasured,
    NodesProgressed,
)
from penstock.core.control.roster import SLOTS
from penstock.core.delivery.ring import RingEffect, RingMember, SendPing, SendPong, TellSilence
from penstock.core.progress.marks import EPOCH_END
from penstock.errors import FunctionError
from penstock.testing.simulator.lives.shape import STAGE

if TYPE_CHECKING:
    from penstock.testing.simulator.lives.world import LifeWorld

__all__ = ["BEAT_MS", "INTERVAL_MS", "TIMEOUT_MS", "Host", "NodeRun"]

INTERVAL_MS, TIMEOUT_MS, BEAT_MS = 100, 300, 200
PACE = 0.15
"""How often a node completes an epoch in a tick, if it can."""
NO_WORDS = LastWords()


@dataclass(eq=False)
class NodeRun:
    """One incarnation of a node, on a host."""

    node: int
    incarnation: int
    epoch: int
    """The last epoch that it has completed."""
    care: Care
    had: int
    """The last epoch that any incarnation before it had completed."""
    saves: bool = False
    """Whether it was asked to save its state."""


@dataclass(eq=False)
class Host:
    """A process that runs nodes."""

    world: LifeWorld
    number: int
    run: int
    """Which of the drivers has launched it."""
    ring: RingMember
    alive: bool = True
    ends: bool = False
    """Whether it was told to end."""
    going: bool = False
    """Whether sources may read."""
    stopping: bool = False
    """Whether sources end."""
    frozen_ms: int = 0
    muted_ms: int = 0
    beats_ms: int = 0
    offset_ms: int = 0
    nodes: dict[int, NodeRun] = field(default_factory=dict)
    news: dict[int, CheckpointNews] = field(default_factory=dict)
    followed: dict[int, CheckpointNews] = field(default_factory=dict)
    """The states that it has in memory."""
    stuck: bool = False
    """Whether neither orders nor signals end it."""
    raised: bool = False
    """Whether a stage has raised here; the driver need not have heard of it."""

    def __str__(self) -> str:
        return f"host {self.number}"

    @property
    def slot(self) -> int:
        """The place that its job fills."""
        return self.number % SLOTS

    @property
    def is_awake(self) -> bool:
        """Whether it does anything now."""
        return self.alive and self.world.now_ms >= self.frozen_ms

    @property
    def is_heard(self) -> bool:
        """Whether what it says arrives."""
        return self.is_awake and self.world.now_ms >= self.muted_ms

    # -- time passes -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Work, follow, beat and watch."""
        world = self.world
        if self.ends and not self.stuck:
            world.ended(self)
            return
        for run in list(self.nodes.values()):
            if self.alive and world.random.random() < PACE:
                self._work(run)
        if self.alive:
            self._follow()
            self.rest()

    def rest(self) -> None:
        """Beat and watch."""
        world = self.world
        if self.ends and not self.stuck:
            world.ended(self)
            return
        if world.now_ms >= self.beats_ms:
            self.beats_ms = world.now_ms + BEAT_MS
            self._beat()
        load = world.random.randint(0, 100)
        self.heard_of_ring(self.ring.time_passed(world.now_ms + self.offset_ms, load))

    def _beat(self) -> None:
        figures = {node: run.epoch for node, run in self.nodes.items()}
        self.world.say(self, NodesProgressed(figures))
        if self.world.random.random() < 0.3:
            self.world.say(self, LoadsMeasured(dict(self.ring.loads)))

    def heard_of_ring(self, effects: list[RingEffect]) -> None:
        """Pings, pongs, and a word to the driver."""
        world = self.world
        for effect in effects:
            if isinstance(effect, TellSilence):
                seen = world.seen(effect.host)
                world.say(
                    self,
                    HostSilent(self.number, effect.host, effect.silent_ms, seen, effect.loads),
                )
                continue
            other = world.present(effect.to)
            if other is None or not other.is_heard or not self.is_heard:
                continue
            if isinstance(effect, SendPing):
                load = world.random.randint(0, 100)
                other.heard_of_ring(other.ring.pinged(self.number, effect.beat, effect.loads, load))
            elif isinstance(effect, SendPong):
                other.ring.ponged(self.number, effect.loads, world.now_ms + other.offset_ms)

    def _follow(self) -> None:
        """Read one of the checkpoints that it was told of, if that is still there."""
        if not self.news or self.world.random.random() < 0.5:
            return
        node = next(iter(self.news))
        news = self.news.pop(node)
        if self.world.store.has(node, news):
            self.followed[node] = news
            self.world.tell_followed(self, node, news.key)

    # -- nodes -----------------------------------------------------------------------------------

    def _work(self, run: NodeRun) -> None:
        """Complete the next epoch, if all of it is there and the process survives it."""
        world, shape = self.world, self.world.shape
        if run.saves and run.epoch >= 0:
            run.saves = False
            world.save(self, run)
        if run.epoch >= EPOCH_END:
            return
        following = run.epoch + 1
        last = world.last
        if run.node in shape.sources:
            if not self.going:
                return
            if following >= shape.epochs or (self.stopping and run.epoch >= last[run.node]):
                following = EPOCH_END
        else:
            parents = shape.parents(run.node)
            known = min(world.reached[parent] for parent in parents)
            if known < following:
                return
            if known == EPOCH_END and following > max(last[parent] for parent in parents):
                following = EPOCH_END
        if following < EPOCH_END and not self._survives(run, following):
            return
        run.epoch = following
        world.completed(self, run)

    def _survives(self, run: NodeRun, epoch: int) -> bool:
        """Call the stage with the rows of an epoch."""
        shape = self.world.shape
        deadly = shape.deadly.get(run.node, frozenset())
        skipped = {row.digest for row in run.care.skipped if row.since <= epoch}
        for digest in sorted(skipped - deadly):
            self.world.monitor.innocent(run.node, digest)
        rows = [row for row in shape.batch(run.node, epoch) if row not in skipped]
        announces = run.care.announces and epoch > run.had
        for piece in self._pieces(run, rows):
            self.world.monitor.called(run.node, piece)
            words = LastWords(
                STAGE,
                shape.names[run.node],
                epoch,
                f"{len(piece)} rows",
                digests=tuple(piece) if run.node in shape.skipping else (),
            )
            if announces:
                self.world.say_and_wait(self, HostWorking(self.number, words))
            if deadly.intersection(piece):
                if shape.trouble == "raises" and self.number:
                    self.raises(restarts=True)
                    return False
                if shape.speaks:
                    last = HostWorking(self.number, words._replace(status=3))
                    self.world.say_and_wait(self, last)
                self.world.count("deadly")
                self.world.note(self, "does not survive", words)
                self.world.kill(self)
                return False
            if self.world.cut_short and announces and self.number != 0:
                self.world.cut_short = False
                self.world.kill(self)
                return False
            if announces:
                self.world.say_and_wait(self, HostWorking(self.number, NO_WORDS))
        return True

    @staticmethod
    def _pieces(run: NodeRun, rows: list[int]) -> list[list[int]]:
        """What the stage is called with at a time: suspects in pieces, the others together."""
        if not run.care.suspects:
            return [rows] if rows else []
        (suspects,) = run.care.suspects
        chosen = [row for row in rows if row in suspects.digests]
        others = [row for row in rows if row not in suspects.digests]
        size = suspects.piece
        pieces = [chosen[at : at + size] for at in range(0, len(chosen), size)]
        return [*pieces, others] if others else pieces

    def raises(self, restarts: bool) -> None:
        """A stage raises: the loop ends with an error, and the task comes to its end."""
        error = FunctionError("stage 'work': a bad row", stage=STAGE)
        self.world.note(self, "raises", error.message)
        self.nodes.clear()
        self.raised, self.ends, self.stuck = True, False, False
        self.world.say_and_end(self, HostRaised(self.number, error.to_dict(), restarts))
