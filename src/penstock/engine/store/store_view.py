"""A read-only view of a flow's store for processes that do not run the flow.

A running flow renames folders and drops files while they are being looked at; what is gone by the
time it is read is looked for again a few times.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.connectors.epoch_log import last_epoch
from penstock.core.causal.clocks import Position
from penstock.core.causal.graph import NodeKind
from penstock.core.causal.reports import NodeReport, Saved, Stored
from penstock.core.causal.times import ZERO
from penstock.core.control.retention import RetentionMachine
from penstock.core.progress.marks import EPOCH_END
from penstock.core.rollback.watch import SpanWatch
from penstock.engine.driver.rollback_request import (
    RollbackMark,
    going_back,
    plan_back,
    preview_rows,
)
from penstock.engine.host.causal_source import cuts_of
from penstock.engine.store.changed_flow import adapted
from penstock.engine.store.description import FLOW_FILE, ChainInfo, FlowDescription
from penstock.engine.store.durable import NodeStore, read_stored, stored_incarnation
from penstock.engine.store.logs import BoundaryLog, CommitLog, seen_epoch
from penstock.errors import PeerError, SettingsError, TransientError

__all__ = ["StoreView"]

T = TypeVar("T")

TRIES = 5
PAUSE_S = 0.05


class StoreView:
    """What is in a store."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / "metadata.json").exists():
            raise SettingsError(
                f"{self.path} is not the store of a flow: give the folder that start() was given "
                "as checkpointLocation",
                path=str(self.path),
            )
        described = FlowDescription.read(self.path)
        if described is None:
            raise SettingsError(
                f"{self.path} has no {FLOW_FILE}: the flow has not been started with it by this "
                "version of Penstock, or runs without recovery; start it once",
                path=str(self.path),
            )
        self.description = described
        self.mark = RollbackMark(self.path)

    # -- who runs it -----------------------------------------------------------------------------

    def holder(self) -> str | None:
        """The process that runs the flow now, such as ``pid 17 on here``; None: it does not run."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(descriptor, 1000).decode(errors="replace").strip() or "a process"
        finally:
            os.close(descriptor)
        return None

    def ask_for_rollback(self, to: int) -> list[dict[str, Any]]:
        """Make the next start roll back first; returns what that will do. The flow must not run."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            rows = self.preview(to)
            self.mark.write(to)
        except BlockingIOError as error:
            raise TransientError(
                f"{self.path}: another process has just started the flow; ask again",
                path=str(self.path),
            ) from error
        finally:
            os.close(descriptor)
        return rows

    # -- what is there ---------------------------------------------------------------------------

    def stored(self) -> dict[int, Stored]:
        """What is durable of every node."""
        found: dict[int, Stored] = {}
        for node in reversed(self._graph.order):  # sinks first: sources are ahead of them
            found[node] = _retrying(partial(self._stored, node))
        return found

    def retention(self, stored: dict[int, Stored]) -> RetentionMachine:
        """What may be forgotten of what is stored."""
        machine = RetentionMachine(self._graph)
        machine.stored_read(stored, stored)
        for node, kind in self._graph.kinds.items():
            if kind is NodeKind.SINK:
                machine.sink_published(node, stored[node].checkpoints[0].report.completed)
        machine.begun()
        return machine

    def preview(self, to: int) -> list[dict[str, Any]]:
        """What a rollback to an epoch would do, per stage."""
        stored = self.stored()
        found = plan_back(self.description, stored, to, self.retention(stored).gone_before())
        reached = {node: self._reached(stored[node]) for node in self._graph.order}
        return preview_rows(self.description, stored, found, reached, self._bytes_of)

    def status(self) -> dict[str, Any]:
        """Everything, in a form that JSON can carry."""
        metadata = json.loads((self.path / "metadata.json").read_text())
        stored = self.stored()
        retention = self.retention(stored)
        lows = retention.gone_before()
        holder = self.holder()
        return {
            "flow": self.description.flow,
            "id": metadata["id"],
            "store": str(self.path),
            "running": holder is not None,
            "driver": holder,
            "low": min(lows.values(), default=-1),
            "rollbackTo": self.mark.read(),
            "oldestRollback": going_back(self.description, stored, lows).oldest_epoch(),
            "bytes": _bytes_under(self.path),
            "stages": [
                self._stage(chain, stored, retention.watch) for chain in self.description.chains
            ],
            "links": [
                {"from": link.source, "to": link.target, "exchange": link.exchange}
                for link in self.description.links
            ],
        }

    # -- inside ----------------------------------------------------------------------------------

    @property
    def _graph(self) -> Any:
        return self.description.graph

    def _stage(
        self, chain: ChainInfo, stored: dict[int, Stored], watch: SpanWatch
    ) -> dict[str, Any]:
        shards = []
        for node in chain.nodes:
            found = stored[node]
            shard: dict[str, Any] = {"node": self.description.node_name(node)}
            if chain.kind == NodeKind.SOURCE.value:
                ends = [cut for cut in found.cuts if cut.epoch < EPOCH_END]
                shard |= {
                    "boundaries": len(ends),
                    "epoch": ends[-1].epoch if ends else -1,
                    "rows": ends[-1].offset if ends else 0,
                }
            elif chain.kind == NodeKind.SINK.value:
                shard["published"] = found.checkpoints[0].report.completed
            elif chain.keeps_state:
                keys = [saved.key for saved in found.checkpoints if saved.key]
                shard |= {
                    "kept": [saved.report.completed for saved in found.checkpoints],
                    "bytes": max((self._bytes_of(node, key) for key in keys), default=0),
                }
            shards.append(shard | {"low": watch.low(node)})
        return {
            "stage": chain.name,
            "stages": [stage.name for stage in chain.stages],
            "kind": chain.kind,
            "regime": chain.regime,
            "loops": list(chain.loops),
            "shards": shards,
        }

    def _stored(self, node: int) -> Stored:
        chain = self.description.chain_of(node)
        shard = node - chain.first_node
        kind = self._graph.kinds[node]
        if kind is NodeKind.SOURCE:
            records = BoundaryLog(self.path, chain.stages[0].name, shard).read()
            return Stored(cuts=cuts_of(records), through=seen_epoch(records))
        if kind is NodeKind.STATELESS:
            return Stored()
        if kind is NodeKind.SINK:
            epoch = self._published(chain, shard)
            clock = {sender: Position(ZERO, epoch) for sender in self._graph.parents[node]}
            return Stored((Saved(0, NodeReport(node, completed=epoch, clock=clock)),))
        found = read_stored(
            self.path,
            chain.name,
            shard,
            stored_incarnation(self.path, chain.name, shard),
            node,
            self._graph.children[node],
            self._graph.parents[node],
        )
        return adapted(self.description, node, found)

    def _published(self, chain: ChainInfo, shard: int) -> int:
        """How far the sinks of a chain have got; one without a listener: as all the others."""
        kinds = {stage.name: stage.kind for stage in chain.stages}
        found = []
        for name in chain.sinks:
            if kinds[name] == "persist":
                seen = last_epoch(self.path / "persist" / name / f"shard-{shard:05d}")
            else:
                seen = CommitLog(self.path / "commits" / f"{name}.log").last()
            found.append(-1 if seen is None else seen)
        others = [other for other in self.description.chains if other.sinks and not chain.sinks]
        found += [self._published(other, 0) for other in others]
        return min(found, default=-1)

    def _bytes_of(self, node: int, key: int) -> int:
        chain = self.description.chain_of(node)
        shard = node - chain.first_node
        incarnation = stored_incarnation(self.path, chain.name, shard)
        return NodeStore(self.path, chain.name, shard, incarnation).size(key)

    def _reached(self, stored: Stored) -> int:
        epochs = [saved.report.completed for saved in stored.checkpoints]
        epochs += [cut.epoch for cut in stored.cuts if cut.epoch < EPOCH_END]
        return max(epochs, default=-1)


def _retrying(read: Callable[[], T]) -> T:
    for _ in range(TRIES - 1):
        try:
            return read()
        except (PeerError, FileNotFoundError):  # it was being renamed
            time.sleep(PAUSE_S)
    return read()


def _bytes_under(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total
