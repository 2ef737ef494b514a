"""Invariants, checked as the simulation goes, and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.causal.diffs import DiffLink, pairs, show_diff
from penstock.core.causal.graph import NodeKind
from penstock.core.causal.reports import Stored
from penstock.core.causal.times import Stamp
from penstock.core.control.global_hold import multiple_at
from penstock.core.control.recovery import StartNode
from penstock.core.control.retention import Low
from penstock.core.node.causal_effects import Restated
from penstock.core.node.messages import DATA, Complete, Deliver, Message
from penstock.core.progress.marks import EPOCH_END
from penstock.testing.reference_retention import watermark
from penstock.testing.simulator.guarantees import broken_promise, doubled
from penstock.testing.simulator.stages import (
    Row,
    epochs_of,
    expected,
    fresh,
    mix,
    watermark_at,
    watermarks_of,
)
from penstock.testing.simulator.violations import Violation

if TYPE_CHECKING:
    from penstock.testing.simulator.process import Process
    from penstock.testing.simulator.world import World

__all__ = ["Monitor"]


class Monitor:
    """Watches what nodes handle, complete and publish."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._meaning: dict[tuple[int, Stamp], DiffLink] = {}
        self._inputs: dict[int, dict[int, list[Row]]] = {}
        self._noise: dict[tuple[int, int], int] = {}
        self._watermarks: dict[tuple[int, int], int | None] = {}
        self._settled = watermarks_of(world.shape, world.store.cuts)
        """Finds those after epochs that every source has cut: these never change."""
        self._truncated: tuple[Mapping[int, Low], Mapping[int, Stored]] = {}, {}
        """The low epochs that were looked at last, and what was durable then."""

    # -- Monotonicity, Regularity ----------------------------------------------------------------

    def received(self, process: Process, message: Message) -> None:
        """A message that a node is about to take in."""
        if message.kind != DATA or process.zombie:
            return
        for link, made_from in pairs(message.diff):
            if made_from is None:
                continue
            key = (link.node, link.stamp)
            known = self._meaning.get(key)
            if known is None or known == made_from:
                self._meaning[key] = made_from
                continue
            if self._held(key, known):
                raise Violation(
                    "Regularity",
                    f"{process.name} got {show_diff(message.diff)}, but another node knows "
                    f"{show_diff((link, known))}",
                )
            self._meaning[key] = made_from

    def _held(self, key: tuple[int, Stamp], meaning: DiffLink) -> bool:
        """Whether a live node has handled something with this meaning."""
        for process in self.world.processes.values():
            if not process.alive or process.zombie:
                continue
            for diff in process.machine.diffs.diffs:
                for link, made_from in pairs(diff):
                    if (link.node, link.stamp) == key and made_from == meaning:
                        return True
        return False

    def delivered(self, process: Process, effect: Deliver) -> None:
        """Rows reach a vertex."""
        world = self.world
        if world.trace is not None:
            world.note(f"{process.name} handles {effect.payload} of epoch {effect.time.epoch}")
        # What goes round a loop was let in before: who replays does not hold.
        held = not process.machine.replaying and effect.link not in process.machine.inside
        if world.shape.global_every is not None and held:
            self._paused(process, effect.time.epoch, world.shape.global_every)

    def _paused(self, process: Process, epoch: int, every: int) -> None:
        """(Global checkpoints) rows wait until all nodes' checkpoints before them are durable."""
        world = self.world
        last = multiple_at(epoch, every) - every
        if epoch == EPOCH_END or not world.store.allowed(process.node, process.incarnation):
            return
        for node, kept in world.store.checkpoints.items():
            ended = [e for e in epochs_of(world.shape, world.store.cuts, node) if e <= last]
            newest = max(one.checkpoint.report.completed for one in kept)
            if newest < max(ended, default=-1):
                raise Violation(
                    "pause",
                    f"{process.name} handles rows of epoch {epoch}, but the newest checkpoint of "
                    f"{node} is at {newest}",
                )

    def read(self, process: Process, epoch: int) -> None:
        """A source reads, perhaps again: nothing that it was told to forget."""
        acknowledged = self.world.store.acknowledged[process.node]
        if epoch <= acknowledged and not process.zombie:
            raise Violation(
                "retention",
                f"{process.name} reads epoch {epoch}, which may be gone up to {acknowledged}",
            )

    def publishes(self, process: Process, epoch: int) -> None:
        """A sink publishes: not when a plan was made for another one and its host was told."""
        world = self.world
        cluster = world.cluster
        if cluster is None or cluster.refuses(process.host):
            return
        if world.driver.collected.get(process.node, -1) > process.incarnation:
            raise Violation("fence", f"{process.name} publishes {epoch}, but was to stop before")

    def planned(self, starts: list[StartNode], limits: Mapping[int, int]) -> None:
        """Nodes start where the plan says: with state, no later than a person has asked for."""
        for node, _, _, start, _ in starts:
            if start.checkpoint is not None and start.completed > limits.get(node, EPOCH_END):
                raise Violation(
                    "rollback", f"{node} starts at {start.completed}, not by {limits[node]}"
                )

    def sent(self, process: Process, message: Message) -> None:
        """A message leaves: what an eager node makes is in a durable checkpoint then."""
        eager = self.world.shape.regimes.get(process.node) == "eager"
        if eager and message.stamp and not process.zombie:  # without a stamp: a mark restated
            kept = self.world.store.checkpoints[process.node]
            newest = max(one.checkpoint.report.completed for one in kept)
            if message.time.epoch > newest:
                raise Violation(
                    "eager", f"{process.name} sends epoch {message.time.epoch} before {newest}"
                )

    def saved(self, process: Process, completed: int) -> None:
        """A node in a loop takes a checkpoint, with nothing of later epochs in its state."""
        later = [epoch for epoch in process.vertex.epochs if epoch > completed]
        if later and not process.zombie:
            raise Violation(
                "block", f"{process.name} saves epoch {completed} with rows of {later} inside"
            )

    def drawn(self, process: Process, what: list[int], noise: int) -> None:
        """A noisy node has added a number to rows (or to what an epoch led to)."""
        if not process.zombie:
            self._noise.update(((process.node, one), noise) for one in what)

    def handled(self, process: Process, before: dict[int, Stamp], message: Message) -> None:
        """After a message was taken in: clocks never go back."""
        now = process.machine.clock
        for sender, stamp in before.items():
            if now[sender] < stamp:
                raise Violation("Monotonicity", f"{process.name}: {sender} went back to {now}")

    # -- exactly once, no frontier ahead ---------------------------------------------------------

    def completed(self, process: Process, effect: Complete, rows: list[Row]) -> None:
        """An epoch is complete at a node: it must have had exactly the epoch's rows."""
        epoch = effect.epoch
        if self.world.trace is not None:
            self.world.note(f"{process.name} completes epoch {epoch} at {effect.watermark_us}")
        if process.zombie:
            return
        self._not_ahead(process, epoch)
        self._watermark(process, epoch, effect.watermark_us)
        if process.vertex.kind not in (NodeKind.STATEFUL, NodeKind.SINK):
            return
        wanted = self.inputs(process.node, epoch)
        broken = broken_promise(self.world.shape, process.node, rows, wanted)
        if broken is not None:
            raise Violation(self._promise(process.node), f"{process.name}, epoch {epoch}: {broken}")

    def _promise(self, node: int) -> str:
        graph = self.world.shape.graph
        if node in graph.lossy:
            return "at-most-once"
        return "at-least-once" if node in graph.doubling else "exactly-once"

    def restated(self, process: Process, effect: Restated) -> None:
        """A restarted node knows the watermark at its start."""
        if self.world.trace is not None:
            self.world.note(f"{process.name} stands at {effect}")
        # Who feeds nodes that skip epochs may start after one that will yet be cut.
        if not process.zombie and self._uncut(process.node, effect.epoch) is None:
            self._watermark(process, effect.epoch, effect.watermark_us)

    def _not_ahead(self, process: Process, epoch: int) -> None:
        if process.node in self.world.shape.graph.lossy:
            return  # who skips epochs has ended them
        source = self._uncut(process.node, epoch)
        if source is not None:
            raise Violation(
                "no frontier ahead",
                f"{process.name} completes epoch {epoch}, but source {source} has not cut it",
            )

    def _uncut(self, node: int, epoch: int) -> int | None:
        """A source above a node that has not come to the end of an epoch, if there is one."""
        below = self.world.shape.graph.descendants
        for source, cuts in self.world.store.cuts.items():
            if (cuts[-1].epoch if cuts else -1) < epoch and node in below[source]:
                return source
        return None

    def _watermark(self, process: Process, epoch: int, watermark_us: int | None) -> None:
        world = self.world
        key = (process.node, epoch)
        if process.node in world.shape.graph.lossy:
            return  # who skips epochs has missed what they did to it
        if key not in self._watermarks:
            cuts, pairs = world.store.cuts, world.shape.pairs
            last = (ends[-1].epoch if ends else -1 for n, ends in cuts.items() if n not in pairs)
            settled = all(end >= epoch for end in last)
            found = self._settled(*key) if settled else watermark_at(world.shape, cuts, *key)
            self._watermarks[key] = found
        if watermark_us != self._watermarks[key]:
            raise Violation(
                "watermark",
                f"{process.name} has {watermark_us} after epoch {epoch}, not "
                f"{self._watermarks[key]}",
            )

    def inputs(self, node: int, epoch: int) -> list[Row]:
        """The rows (their ids) that reach a node in an epoch."""
        world = self.world
        cuts = world.store.cuts
        behind = (n for n, ends in cuts.items() if not ends or ends[-1].epoch < epoch)
        if any(source not in world.shape.pairs for source in behind):
            return expected(world.shape, cuts, epoch, fresh(world.shape))[node]
        if epoch not in self._inputs:
            self._inputs[epoch] = expected(world.shape, cuts, epoch, fresh(world.shape))
        return self._inputs[epoch][node]

    def truncated(self, lows: Mapping[int, Low], stored: Mapping[int, Stored]) -> None:
        """Logs are cut by epoch: never behind what the loss of everything would ask for."""
        if self._truncated == (lows, stored):
            return
        self._truncated = lows, stored
        found = watermark(self.world.shape.graph, stored)
        ahead = any(
            start.completed < (lows[node].own if start.checkpoint else lows[node].region)
            for node, start in found.starts.items()
        )
        if found.impossible is not None or ahead:
            raise Violation("watermark", f"logs are cut at {lows}: {found}")

    # -- the end ---------------------------------------------------------------------------------

    def ended(self) -> None:
        """Everything was published, and it is what some run without failures publishes."""
        world = self.world
        shape = world.shape
        for process in world.processes.values():
            if not process.alive or process.machine.replaying:
                raise Violation("Eventuality", f"{process.name} did not recover")
        for sink, epochs in world.store.published.items():
            wanted = epochs_of(shape, world.store.cuts, sink)
            found = [
                epoch
                for epoch, rows in sorted(epochs.items())
                if rows or epoch in wanted or not shape.is_forced(epoch)
            ]
            skipped = sink in shape.graph.lossy and world.faults and found[-1:] == [EPOCH_END]
            if (found != wanted and not skipped) or wanted[-1:] != [EPOCH_END]:
                raise Violation("Eventuality", f"sink {sink} published {found}, not {wanted}")
        orders: dict[int, dict[int, int]] = {}
        for node in shape.graph.order:
            if world.processes[node].vertex.kind is NodeKind.ORDERED:
                digest = 0
                orders[node] = {}
                for row in world.processes[node].vertex.history:
                    digest = mix(digest, row[0] ^ row[1])
                    orders[node][mix(row[0], node)] = digest % 1000
        vertices = fresh(shape)
        due: dict[int, list[Row]] = {sink: [] for sink in shape.graph.lossy}
        for epoch in sorted({cut.epoch for cuts in world.store.cuts.values() for cut in cuts}):
            inputs = expected(shape, world.store.cuts, epoch, vertices, orders, self._noise)
            for sink, epochs in world.store.published.items():
                rows = epochs.get(epoch, [])
                if sink in shape.graph.untraced and world.faults:
                    due.setdefault(sink, []).extend(inputs[sink])
                    continue  # each epoch was looked at when it was complete
                if rows != inputs[sink]:
                    raise Violation(
                        "equivalence",
                        f"sink {sink} published {rows} in epoch {epoch}; a run without "
                        f"failures in the same order would have published {inputs[sink]}",
                    )
        for sink in shape.graph.lossy & world.store.published.keys():
            had = [row for rows in world.store.published[sink].values() for row in rows]
            if world.faults and (twice := doubled(had, due[sink])):
                raise Violation("at-most-once", f"sink {sink} published {twice} too often")
