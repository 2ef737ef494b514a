"""A rollback that a person asks for: where each node would start, said before it is done.

All nodes restart, each from its newest checkpoint at or before an epoch
(:mod:`penstock.core.control.going_back`).  Sinks keep what they have published: the epochs until
there are made again and dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.core.causal.graph import NodeKind
from penstock.core.causal.reports import RecoveryPlan, Start, Stored
from penstock.core.control.going_back import GoingBack, newest_epoch
from penstock.core.progress.marks import EPOCH_END
from penstock.engine.store.description import ChainInfo, FlowDescription
from penstock.errors import SettingsError
from penstock.storage import StoreLike, storage_of

__all__ = ["RollbackMark", "going_back", "plan_back", "preview_rows"]

StoredNodes = Mapping[int, Stored]
Lows = Mapping[int, int]
"""Per node the low epoch of those it is connected with."""


def plan_back(
    description: FlowDescription,
    stored: StoredNodes,
    to: int,
    lows: Lows,
    reached: Iterable[int] = (),
) -> RecoveryPlan:
    """The plan of going back to the end of an epoch; an error says who cannot.

    It must be one that the flow has come to: what is stored, and the epochs that nodes have
    ``reached``, say how far that is.
    """
    back = going_back(description, stored, lows)
    newest = newest_epoch(stored, reached)
    found = back.plan(to) if to <= newest else None
    if found is not None:
        return found
    oldest = back.oldest_epoch()
    reason = (
        _who_cannot(description, stored, to, lows)
        if to <= newest
        else "it has not been; the flow is at epoch " + str(newest)
    )
    way = (
        "there is no epoch that the flow can go back to"
        if oldest is None or oldest > newest
        else f"the flow can go back to epoch {oldest} or a later one, up to {newest}"
    )
    raise SettingsError(f"rollback: epoch {to} cannot be reached: {reason}; {way}", epoch=to)


def going_back(description: FlowDescription, stored: StoredNodes, lows: Lows) -> GoingBack:
    """Where a flow can go back to."""
    return GoingBack(description.graph, stored, lows, description.together)


def _who_cannot(description: FlowDescription, stored: StoredNodes, to: int, lows: Lows) -> str:
    said = []
    for chain in description.chains:
        if not chain.keeps_state:
            continue
        kept = {
            node: [
                epoch
                for saved in stored[node].checkpoints
                if (epoch := saved.report.completed) >= lows[node]
            ]
            for node in chain.nodes
        }
        without = [node for node, epochs in kept.items() if not any(e <= to for e in epochs)]
        if without:
            oldest = min((epoch for node in without for epoch in kept[node]), default=None)
            where = "none" if oldest is None else f"epoch {oldest}"
            shards = ", ".join(str(node - chain.first_node) for node in without)
            said.append(
                f"stage {chain.name!r} (shard {shards}) has no checkpoint there; its oldest that "
                f"can be used is {where}"
            )
    if not any(chain.keeps_state for chain in description.chains):
        return "what came before is forgotten"
    return "; ".join(said) or "the checkpoints that are kept do not fit each other"


def preview_rows(
    description: FlowDescription,
    stored: StoredNodes,
    found: RecoveryPlan,
    reached: Mapping[int, int],
    size_of: Callable[[int, int], int],
) -> list[dict[str, Any]]:
    """One row per stage: from where to where, from what, and how much is read again.

    ``reached`` is how far each node has come, ``size_of(node, key)`` the bytes of a checkpoint.
    """
    rows = []
    for chain in description.chains:
        starts = [found.starts[node] for node in chain.nodes]
        far = [reached[node] for node in chain.nodes if node in reached]
        keys = [(start.node, start.checkpoint) for start in starts if start.checkpoint]
        rows.append(
            {
                "stage": chain.name,
                "shards": chain.shards,
                "from": max(far, default=None),
                "to": min(start.completed for start in starts),
                "restores": _restores(chain, starts),
                "bytes": sum(size_of(node, key) for node, key in keys),
                "replays": _replays(chain, starts, stored),
            }
        )
    return rows


def _restores(chain: ChainInfo, starts: list[Start]) -> str:
    if chain.kind == NodeKind.SOURCE.value:
        return "position"
    if chain.kind == NodeKind.SINK.value:
        return "published"
    if not chain.keeps_state:
        return "nothing"
    return "checkpoint" if all(start.checkpoint for start in starts) else "initial state"


def _replays(chain: ChainInfo, starts: list[Start], stored: StoredNodes) -> str:
    if chain.kind == NodeKind.SOURCE.value:
        ends = [max((cut.offset for cut in stored[s.node].cuts), default=s.offset) for s in starts]
        again = sum(end - start.offset for end, start in zip(ends, starts, strict=True))
        return f"reads {again:,} rows again"
    epoch = min(start.completed for start in starts)
    if chain.kind == NodeKind.SINK.value:
        return "keeps what it has published" + (f", up to epoch {epoch}" if epoch >= 0 else "")
    if epoch >= EPOCH_END:
        return "nothing: its input has ended"
    return "its input from the beginning" if epoch < 0 else f"its input after epoch {epoch}"


_MARK = "rollback.json"


class RollbackMark:
    """``rollback.json``: a rollback that waits for a driver.

    It is asked for while no driver runs the flow; the next one does it first.
    """

    def __init__(self, store: StoreLike) -> None:
        self._storage = storage_of(store)
        self.path = f"{self._storage}/{_MARK}"

    def read(self) -> int | None:
        """The epoch to go back to; None: nothing was asked for."""
        try:
            to = json.loads(self._storage.read(_MARK))["to"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"{self.path} is damaged ({error!r}); remove it and ask for the rollback again",
                path=self.path,
            ) from error
        return int(to)

    def write(self, to: int) -> None:
        """Ask for a rollback, durably."""
        self._storage.write(_MARK, json.dumps({"to": to}).encode())

    def clear(self) -> None:
        """It is done, or not wanted any more."""
        self._storage.delete(_MARK)
