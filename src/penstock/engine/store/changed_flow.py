"""A store and a flow that has changed since: what still fits is restored, the rest is refused.

A state belongs to the stages that have it, by name.  If they are still there, with as many shards
and the same definition, their state has a home, whatever was fused with them then or now.  But a
checkpoint also knows of its node's neighbours, by number, and these have changed.  So of those that
were made before the change (*foreign* ones) only the state at the end of their epoch is used: what
the node had received beyond it is read again, and what it had sent is made again.  Then a sender's
checkpoint must not be later than its receivers'; where those that are kept do not fit like that,
nothing is changed, and the error says what to do.

A stage that is new begins without state, at the epoch where the others go on.  So does one that
keeps nothing beyond an epoch, such as the writer of a file sink, whether the flow has changed or
not: what was published need not be read again for it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.plan import plan
from penstock.core.causal.reports import NodeReport, Saved, Start, Stored
from penstock.core.causal.times import ZERO
from penstock.core.node.causal_effects import Checkpoint
from penstock.core.progress.marks import EPOCH_END
from penstock.engine.host.chain_state import ChainState, StageState
from penstock.engine.store.description import ChainInfo, FlowDescription
from penstock.engine.store.durable import Beginnings, NodeStore, read_stored, stored_incarnation
from penstock.engine.store.durable.node_store import state_folder
from penstock.errors import SettingsError
from penstock.operators.watermark import WithWatermark
from penstock.storage import StoreLike, storage_of

__all__ = ["adapted", "cleaned", "fit_store", "foreign_stages"]

_VERTEX = "vertex"


def fit_store(
    where: StoreLike, now: FlowDescription, published: int, drop: Sequence[str]
) -> FlowDescription:
    """Bring a store in line with a flow, or refuse; the flow's description, with what is foreign.

    ``published`` is the last epoch that all sinks have; the states of the stages ``drop`` go.
    """
    was = FlowDescription.read(where)
    if was is None:
        return now
    known = [stage.name for chain in (*was.chains, *now.chains) for stage in chain.stages]
    for name in drop:
        if name not in known:
            raise SettingsError(f"dropState: there is no stage {name!r}, and there was none")
    if not drop and _shape(was) == _shape(now):
        begun = dict(was.begun)
        begun |= {chain.name: published for chain in now.chains if _forgets(chain)}
        result = replace(now, foreign=was.foreign, begun=begun)
        result.write(where)
        return result
    directory = storage_of(where).directory
    if directory is None:
        raise SettingsError(
            f"the flow has changed since {storage_of(where)} was written; only a store that is a "
            "directory can be brought in line with that: undo the change, or give a new "
            "checkpointLocation",
            path=str(where),
        )
    homes = _homes(directory, was, now, drop)
    foreign = {
        f"{chain.name}[{shard}]": _vintages(directory, was, old, shard)
        for chain, old in homes
        if old is not None
        for shard in range(chain.shards)
    }
    begun = {chain.name: published for chain, old in homes if old is None}
    begun |= {
        chain.name: was.begun[old.name]
        for chain, old in homes
        if old is not None and old.name in was.begun
    }
    result = replace(now, foreign=foreign, begun=begun)
    _check_epochs(directory, result, homes, published)
    _move(directory, was, homes)
    result.write(directory)
    return result


Homes = list[tuple[ChainInfo, ChainInfo | None]]
"""Each chain with state, and the one whose state it takes; None: it begins without."""


def _shape(described: FlowDescription) -> tuple[object, ...]:
    """What checkpoints depend on: not what stages without state do, nor where a sink writes."""
    chains = [
        replace(
            chain,
            stages=tuple(
                stage if stage.state not in ("none", "epoch") else replace(stage, about="")
                for stage in chain.stages
            ),
        )
        for chain in described.chains
    ]
    return (
        chains,
        described.links,
        described.graph.kinds,
        described.graph.parents,
        described.together,
    )


def _forgets(chain: ChainInfo) -> bool:
    """Whether a chain that saves checkpoints has nothing in them but rows of open epochs."""
    kept = any(
        stage.state not in ("none", "epoch") or stage.kind == WithWatermark.kind
        for stage in chain.stages
    )
    return chain.keeps_state and not chain.loops and not kept


def _keeping(chain: ChainInfo) -> dict[str, tuple[str, str, str]]:
    """The stages of a chain that have state, and what must not change about them."""
    return {
        stage.name: (stage.kind, stage.state, stage.about)
        for stage in chain.stages
        if stage.state not in ("none", "epoch")
    }


def _homes(
    directory: Path, was: FlowDescription, now: FlowDescription, drop: Sequence[str]
) -> Homes:
    new = [chain for chain in now.chains if chain.keeps_state]
    found: Homes = []
    homeless: list[str] = []
    taken: set[str] = set()
    for old in was.chains:
        names = set(_keeping(old))
        if not old.keeps_state or names <= set(drop):
            continue  # among them those that keep nothing from epoch to epoch
        home = next((chain for chain in new if names & set(_keeping(chain))), None)
        problem = _problem(old, home)
        if problem is None and home is not None:
            found.append((home, old))
            taken.add(home.name)
        else:
            homeless.append(_said(directory, old, problem or "is gone"))
    if homeless:
        raise SettingsError(
            f"the flow has changed since {directory} was written, and state has no home: "
            f"{'; '.join(homeless)}. Undo the change (a stage is known by its name), or start "
            "with dropState=[...] naming these stages, which then begin without state",
            path=str(directory),
        )
    return found + [(chain, None) for chain in new if chain.name not in taken]


def _problem(old: ChainInfo, home: ChainInfo | None) -> str | None:
    if home is None:
        return "is gone"
    before, after = _keeping(old), _keeping(home)
    if before.keys() != after.keys():
        return f"was fused with state of {', '.join(before)}, now of {', '.join(after)}"
    if old.shards != home.shards:
        return f"had {old.shards} shards, now {home.shards}"
    if old.loops != home.loops:
        return "is in another loop"
    changed = [name for name in before if before[name] != after[name]]
    if changed:
        name = changed[0]
        return f"is defined otherwise: {before[name]}, now {after[name]}"
    return None


def _said(directory: Path, chain: ChainInfo, problem: str) -> str:
    epochs: set[int] = set()
    size = 0
    for shard in range(chain.shards):
        store = NodeStore(
            directory, chain.name, shard, stored_incarnation(directory, chain.name, shard)
        )
        if store.exists():
            found = store.epochs()
            epochs |= set(found.values())
            size += max((store.size(key) for key in found), default=0)
    names = ", ".join(map(repr, _keeping(chain)))
    kept = f"epochs {', '.join(map(str, sorted(epochs)))}" if epochs else "no checkpoint"
    return f"stage {names} {problem} ({chain.shards} shards, {kept}, {size:,} bytes)"


def _vintages(
    directory: Path, was: FlowDescription, old: ChainInfo, shard: int
) -> tuple[tuple[int, Sequence[str]], ...]:
    """Up to which key a node's checkpoints were made by which stages."""
    incarnation = stored_incarnation(directory, old.name, shard)
    store = NodeStore(directory, old.name, shard, incarnation)
    newest = store.newest() if store.exists() else 0
    before = tuple(was.foreign.get(f"{old.name}[{shard}]", ()))
    return (*before, (newest, tuple(stage.name for stage in old.stages)))


def _check_epochs(
    directory: Path, described: FlowDescription, homes: Homes, published: int
) -> None:
    """Refuse if the checkpoints that are kept do not fit each other any more."""
    graph = described.graph
    stored = {node: Stored(through=EPOCH_END) for node in graph.order}
    for chain, old in homes:
        for shard, node in enumerate(chain.nodes):
            found = Stored()
            if old is not None and state_folder(directory, old.name).exists():
                found = read_stored(
                    directory,
                    old.name,
                    shard,
                    stored_incarnation(directory, old.name, shard),
                    node,
                    graph.children[node],
                    graph.parents[node],
                )
            stored[node] = adapted(described, node, found)
    for chain in described.chains:
        for node in chain.nodes if chain.kind == "sink" else ():
            clock = {sender: Position(ZERO, published) for sender in graph.parents[node]}
            stored[node] = Stored((Saved(0, NodeReport(node, completed=published, clock=clock)),))
    _check_orders(directory, described, stored, published)
    starts = plan(graph, frozenset(graph.kinds), {}, stored)
    if starts.impossible is not None:
        raise SettingsError(
            f"the flow has changed since {directory} was written, and the checkpoints that are "
            "kept do not fit each other without what their nodes had sent "
            f"({starts.impossible}). Start the flow as it was, call query.checkpoint(), stop it, "
            "and then start the changed one",
            path=str(directory),
        )


def _check_orders(
    directory: Path, described: FlowDescription, stored: Mapping[int, Stored], published: int
) -> None:
    """Refuse to read input again in another order than the one that published rows show."""
    for node in sorted(described.graph.determined):
        epoch = max((one.report.completed for one in stored[node].checkpoints), default=-1)
        if epoch < published:
            raise SettingsError(
                f"the flow has changed since {directory} was written, and "
                f"{described.node_name(node)} depends on the order of its input: it has a "
                f"checkpoint of epoch {epoch}, but epochs up to {published} are published in an "
                "order that cannot be repeated after the change. Start the flow as it was, call "
                "query.checkpoint(), stop it, and then start the changed one",
                path=str(directory),
            )


def _move(directory: Path, was: FlowDescription, homes: Homes) -> None:
    """Move every state to where its stages are now, and delete what is not wanted."""
    wanted = {old.name: chain.name for chain, old in homes if old is not None}
    aside = {}
    for old in was.chains:
        folder = state_folder(directory, old.name)
        if not old.keeps_state or not folder.exists() or wanted.get(old.name) == old.name:
            continue
        if old.name in wanted:
            aside[wanted[old.name]] = folder.rename(folder.with_name(f".{folder.name}"))
        else:
            shutil.rmtree(folder)
    for name, folder in aside.items():
        os.rename(folder, state_folder(directory, name))
    gone = Beginnings(directory, sync=True)
    gone.forget(
        f"{chain.name}[{shard}]"
        for chain, old in homes
        for shard in range(chain.shards)
        if old is None or gone.is_gone(f"{old.name}[{shard}]")
    )


def foreign_stages(described: FlowDescription, node: int, key: int) -> Sequence[str] | None:
    """The stages that made a checkpoint, if it was made before the flow changed."""
    some = described.foreign.get(described.node_name(node), ())
    return next((stages for newest, stages in some if key <= newest), None)


def adapted(described: FlowDescription, node: int, stored: Stored) -> Stored:
    """What is stored of a node, with its foreign checkpoints as what can be used of them."""
    if not described.foreign and not described.begun:
        return stored
    chain = described.chain_of(node)
    saved = []
    for one in stored.checkpoints:
        if one.key and foreign_stages(described, node, one.key) is not None:
            if not _is_clean(chain, one.report):
                continue
            one = one._replace(report=_reduced(described, node, one.report))
        saved.append(one)
    begun = described.begun.get(chain.name)
    if begun is not None:
        fresh = Saved(0, _reduced(described, node, NodeReport(node, completed=begun)))
        if _forgets(chain):
            if begun > max((one.report.completed for one in saved), default=-2):
                saved.append(fresh)
        elif not any(one.key for one in saved):
            # A new stage: it has seen nothing, and goes on with the others.
            saved = [fresh]
    foreign = len(saved) != len(stored.checkpoints) or any(
        one is not other for one, other in zip(saved, stored.checkpoints, strict=False)
    )
    if not foreign:
        return stored
    return Stored(tuple(saved), through=EPOCH_END)


def _is_clean(chain: ChainInfo, report: NodeReport) -> bool:
    """Whether the state at the end of its epoch can be told from what came later."""
    return report.newest <= report.completed or all(s.kind != _VERTEX for s in chain.stages)


def _reduced(described: FlowDescription, node: int, report: NodeReport) -> NodeReport:
    graph, epoch = described.graph, report.completed
    return NodeReport(
        node,
        report.stamp,
        epoch,
        epoch,
        dict.fromkeys(graph.parents[node], Position(ZERO, epoch)),
        dict.fromkeys(graph.children[node], Floor(report.stamp, epoch, epoch)),
        watermark_us=report.watermark_us,
    )


def cleaned(
    report: NodeReport, state: ChainState, start: Start, was: Sequence[str], now: Sequence[str]
) -> tuple[Checkpoint, ChainState]:
    """A foreign checkpoint, as the chain of today takes it."""
    epoch = start.completed
    kept: Mapping[str, StageState] = dict(zip(was, state.stages, strict=True))
    stages = tuple(kept.get(name, StageState()) for name in now)
    floors = dict.fromkeys(start.positions, Floor(start.stamp, epoch, epoch))
    reduced = NodeReport(
        start.node,
        start.stamp,
        epoch,
        epoch,
        start.clock,
        floors,
        watermark_us=report.watermark_us,
    )
    return Checkpoint(reduced, {}), replace(state, stages=stages, pending=())
