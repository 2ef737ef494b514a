"""From the stages a user wrote to the nodes that run: splitting, fusing, placing.

    stages  --combiners split-->  stages  --fused along Forward inputs-->  chains  --shards-->
    nodes

A *chain* is a run of stages fused into one node per shard; a *link* joins an output of one chain to
an input of another.  The plan is plain data: the driver makes it once, every host gets the part
that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import cycle
from pathlib import Path

import pyarrow as pa

from penstock.api.error_policies import with_policies
from penstock.api.flow import Flow, Loop
from penstock.api.regimes import Causal, Regime, Replicated
from penstock.api.stage import STOP, Input, Stage, readers_of
from penstock.connectors.base import KeepsFiles, Sink
from penstock.connectors.persist import PersistSource
from penstock.core.delivery.guarantees import Guarantee, guarantee_named
from penstock.core.time import Time
from penstock.errors import GraphError, SettingsError
from penstock.operators.base import (
    Broadcast,
    Exchange,
    Forward,
    Hash,
    Operator,
    Single,
    SourceOperator,
)
from penstock.operators.loop import Again, Leave, TimeShift
from penstock.operators.user_vertex import UserVertex
from penstock.operators.watermark import WithWatermark
from penstock.planning.guarantees import kept_promises
from penstock.planning.promises import raised
from penstock.planning.regime_plan import check_regimes, pause_of, regime_of, with_persisted
from penstock.planning.replica_regimes import check_ways, choose_replicated

__all__ = ["Chain", "Link", "PhysicalPlan", "PlannedStage", "physical_plan"]


@dataclass(frozen=True)
class PlannedStage:
    """A stage inside a chain."""

    name: str
    operator: Operator
    outputs: tuple[pa.Schema, ...]
    parent: tuple[int, int] | None
    """Position and output port of the stage in the chain that feeds it; None for the head."""
    on_error: str = STOP
    """What happens when it raises: see :meth:`penstock.Stream.onError`."""


@dataclass(frozen=True)
class Link:
    """Rows from an output port of a chain's stage to an input port of another chain's head."""

    index: int
    source_chain: int
    source_stage: int
    """Position of the stage within its chain."""
    source_port: int
    target_chain: int
    target_port: int
    exchange: Exchange
    schema: pa.Schema
    shifts: tuple[Shift, ...] = ()
    """What the link does to times, in order."""

    def shifted(self, time: Time) -> Time | None:
        """The time of a message at the far end; None: it has gone round often enough."""
        for shift in self.shifts:
            if shift.kind == "enter":
                time = time.entered()
            elif shift.kind == "leave":
                time = time.left()
            elif shift.iterations_max is not None and time[-1] + 1 >= shift.iterations_max:
                return None
            else:
                time = time.advanced()
        return time

    @property
    def goes_round(self) -> bool:
        """Whether it is the feedback of a loop."""
        return any(shift.kind == "again" for shift in self.shifts)


@dataclass(frozen=True)
class Shift:
    """A loop boundary, or the way round a loop, that a link crosses."""

    kind: str
    loop: str
    iterations_max: int | None = None


@dataclass(frozen=True)
class Chain:
    """Stages fused into one node per shard."""

    index: int
    name: str
    stages: tuple[PlannedStage, ...]
    shards: int
    first_node: int
    on_driver: bool
    loops: tuple[str, ...] = ()
    """The loops around it, outermost first."""
    regime: Regime = field(default_factory=Causal)
    pause: str = "normal"
    part: str | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    @property
    def is_source(self) -> bool:
        """Whether its nodes read a source."""
        return isinstance(self.stages[0].operator, SourceOperator)

    @property
    def sinks(self) -> list[str]:
        """The names of the sinks in it."""
        return [stage.name for stage in self.stages if stage.operator.sink]

    def node_name(self, node: int) -> str:
        """Such as ``counts[1]``."""
        return f"{self.name}[{node - self.first_node}]"

    @property
    def nodes(self) -> range:
        """Its nodes' numbers."""
        return range(self.first_node, self.first_node + self.shards)


@dataclass(frozen=True)
class PhysicalPlan:
    """Chains, links and nodes of a flow."""

    flow: str
    chains: tuple[Chain, ...]
    links: tuple[Link, ...]
    cut_grid_us: int | None
    """Event-time grid at which results become due, None: there is none."""
    chain_of: dict[int, int] = field(repr=False)
    """The chain of each node."""
    notes: tuple[str, ...] = ()
    """Where it promises something else than the user asked for."""
    not_replicated: Mapping[str, str] = field(default_factory=dict)
    """Stages that were to be replicated and are not, with the reasons."""

    def chain_of_node(self, node: int) -> Chain:
        """The chain that a node is a shard of."""
        return self.chains[self.chain_of[node]]

    def node_name(self, node: int) -> str:
        """The name that people see."""
        return self.chain_of_node(node).node_name(node)

    def targets(self, link: Link, node: int) -> tuple[int, ...]:
        """The nodes that a sender reaches over a link."""
        target = self.chains[link.target_chain]
        if isinstance(link.exchange, Forward):
            shard = node - self.chains[link.source_chain].first_node
            return (target.first_node + shard % target.shards,)
        return tuple(target.nodes)

    def senders(self, link: Link, node: int) -> tuple[int, ...]:
        """The nodes that reach a receiver over a link."""
        source = self.chains[link.source_chain]
        return tuple(n for n in source.nodes if node in self.targets(link, n))

    def links_into(self, chain: int) -> list[Link]:
        """The links that end in a chain."""
        return [link for link in self.links if link.target_chain == chain]

    def links_out_of(self, chain: int) -> list[Link]:
        """The links that start in a chain."""
        return [link for link in self.links if link.source_chain == chain]

    @property
    def sinks(self) -> list[tuple[str, Chain]]:
        """Every sink stage with its chain."""
        return [(name, chain) for chain in self.chains for name in chain.sinks]

    def on_error(self, stage: str | None) -> str:
        """What happens when a stage raises."""
        found = [s.on_error for c in self.chains for s in c.stages if s.name == stage]
        return found[0] if found else STOP

    @property
    def keeps_files(self) -> bool:
        """Whether a connector keeps files in the flow's store."""
        return any(
            isinstance(s.operator, KeepsFiles) for chain in self.chains for s in chain.stages
        )

    def keep_in(self, directory: Path, sync: bool) -> None:
        """Tell the connectors that keep files in the flow's store where that is."""
        for chain in self.chains:
            for stage in chain.stages:
                if isinstance(stage.operator, KeepsFiles):
                    stage.operator.keep_in(directory, sync)

    def place(self, hosts: Sequence[int], driver: int) -> dict[int, int]:
        """Spread the nodes over hosts: forward neighbours together, shards of a chain apart.

        Parts of a flow (:meth:`Flow.part`) have hosts of their own, where there are enough.
        """
        placed: dict[int, int] = {}
        turns = self._turns(hosts)
        for chain in self.chains:
            near = self._neighbour(chain)
            for shard, node in enumerate(chain.nodes):
                if chain.on_driver:
                    placed[node] = driver
                elif near is not None:
                    placed[node] = placed[near.first_node + shard % near.shards]
                else:
                    placed[node] = next(turns[chain.part])
        return placed

    def _turns(self, hosts: Sequence[int]) -> dict[str | None, Iterator[int]]:
        """Per part the hosts that take its nodes in turn."""
        wanted: dict[str | None, int] = {}
        for chain in self.chains:
            if not chain.on_driver and self._neighbour(chain) is None:
                wanted[chain.part] = wanted.get(chain.part, 0) + chain.shards
        if not wanted or len(wanted) > len(hosts):
            return dict.fromkeys(wanted, cycle(hosts))
        dealt: dict[str | None, list[int]] = {part: [] for part in wanted}
        for number, host in enumerate(hosts):
            parts = list(wanted)
            if number >= len(parts):  # those with the most nodes to a host first
                parts = sorted(parts, key=lambda part: len(dealt[part]) / wanted[part])
                number = 0
            dealt[parts[number]].append(host)
        return {part: cycle(own) for part, own in dealt.items()}

    def _neighbour(self, chain: Chain) -> Chain | None:
        """The chain whose nodes it is best placed with, if there is one."""
        into = self.links_into(chain.index)
        follows = _followed(chain.stages[0].operator, self.chains)
        if follows is not None:
            return follows
        into = [link for link in into if self.chains[link.source_chain].part == chain.part]
        if chain.sinks and chain.shards == 1 and len(into) == 1:
            # A sink that gathers from several: with the first of them, unless that is busy reading.
            parent = self.chains[into[0].source_chain]
            if not (parent.is_source or parent.on_driver or parent.index > chain.index):
                return parent
        for link in into:
            parent = self.chains[link.source_chain]
            if (
                isinstance(link.exchange, Forward)
                and parent.index < chain.index
                and parent.shards == chain.shards
                and not parent.on_driver
            ):
                return parent
        return None


def physical_plan(
    flow: Flow,
    parallelism: int,
    recorded: Mapping[str, int] | None = None,
    regime: Regime | None = None,
    guarantee: str = "exactly-once",
    on_error: str = STOP,
) -> PhysicalPlan:
    """Plan a flow for about ``parallelism`` shards per chain.

    ``recorded`` are the shards that sources had in an earlier run, whose positions are kept.
    """
    if not flow.stages:
        raise GraphError(f"flow {flow.name!r} is empty: add a source, such as flow.generate(...)")
    stages = _with_combiners(flow.stages)
    _check(flow, stages)
    with_policies(stages, on_error)
    default = regime or Causal()
    plain = choose_replicated(stages, default, guarantee_named(guarantee))
    stages = with_persisted(stages, _fuse(stages), default)
    promised = kept_promises(stages, guarantee_named(guarantee), default)
    plan = _lay_out(flow, stages, _fuse(stages), parallelism, recorded or {}, default, promised)
    check_ways(plan)
    notes = raised(flow.stages, plan.chains, guarantee_named(guarantee))
    return replace(plan, notes=tuple(notes), not_replicated=plain)


def _with_combiners(stages: Sequence[Stage]) -> list[Stage]:
    """Split aggregates into a part before their exchange and a part after it."""
    readers = readers_of(stages)
    result: list[Stage] = []
    replaced: dict[Stage, Stage] = {}
    for stage in stages:
        inputs: tuple[Input, ...] = ()
        if not isinstance(stage.operator, Again):
            inputs = tuple(
                Input(replaced[source.stage], source.port, source.exchange)
                for source in stage.inputs
            )
        used = frozenset(p for p in range(len(stage.outputs)) if (stage, p) in readers)
        split = None
        if len(inputs) == 1 and not isinstance(inputs[0].exchange, Forward):
            split = stage.operator.combiner(used)
        operator = stage.operator
        if split is not None:
            before, operator = split
            origin = inputs[0]
            schema = origin.stage.outputs[origin.port]
            outputs = before.output_schemas([schema])
            combine = replace(
                stage,
                index=len(result),
                name=f"{stage.name}_combine",
                operator=before,
                inputs=(Input(origin.stage, origin.port, Forward()),),
                outputs=outputs,
                shards=None,
                named=False,
                regime=origin.stage.regime,
                pause=origin.stage.pause,
                part=origin.stage.part,
            )
            result.append(combine)
            inputs = (Input(combine, 0, operator.exchanges(outputs)[0]),)
        planned = replace(
            stage,
            index=len(result),
            operator=operator,
            inputs=inputs,
            follows=None if stage.follows is None else replaced[stage.follows],
        )
        result.append(planned)
        replaced[stage] = planned
    for stage in stages:
        if isinstance(stage.operator, Again):
            _feed(replaced, stage)
    return result


def _feed(replaced: dict[Stage, Stage], stage: Stage) -> None:
    """What goes round is known only after the stages of the loop are."""
    if not stage.inputs:
        name = stage.loop.name if stage.loop else "?"
        raise GraphError(f"loop {name!r}: say what goes round with variable.feed(stream)")
    source = stage.inputs[0]
    replaced[stage].inputs = (Input(replaced[source.stage], source.port, source.exchange),)


def _check(flow: Flow, stages: Sequence[Stage]) -> None:
    if not any(isinstance(stage.operator, Sink) for stage in stages):
        raise GraphError(
            f"flow {flow.name!r} has no sink, so nothing would ever leave it: end a stream with "
            "parquet(), foreachBatch(), subscribe(), memory() or console()"
        )
    marked: set[Stage] = set()
    for stage in stages:
        if (
            isinstance(stage.operator, WithWatermark | Again)
            or stage.follows in marked
            or (stage.inputs and all(source.stage in marked for source in stage.inputs))
        ):
            marked.add(stage)
        needs = getattr(stage.operator, "needs_watermark", False)
        if needs and not all(source.stage in marked for source in stage.inputs):
            raise GraphError(
                f"stage {stage.name!r} works on event time, but no withWatermark(column, delay) "
                "comes before it on every input, so it could never finish a window"
            )


def _fuse(stages: Sequence[Stage]) -> dict[Stage, Stage]:
    """The head of the chain that each stage belongs to; loop boundaries belong to none.

    A chain is restored from what its head received and from one kind of state: so nothing with
    state goes into a source's chain, and a user's vertices, which are kept as they are, stay apart
    from stages that are kept as of the last complete epoch.
    """
    readers = readers_of(stages)
    keeps: dict[Stage, str] = {}
    heads: dict[Stage, Stage] = {}
    for stage in stages:
        if isinstance(stage.operator, TimeShift):
            continue
        heads[stage] = stage
        kept = keeps[stage] = _keeps(stage)
        if len(stage.inputs) != 1 or stage.inputs[0].stage not in heads:
            continue
        source = stage.inputs[0]
        parent, head = source.stage, heads[source.stage]
        fits = (
            isinstance(source.exchange, Forward)
            and len(readers[parent, source.port]) == 1
            and _on_driver(parent) == _on_driver(stage)
            and stage.shards in (None, head.shards)
            and (stage.regime, stage.part) == (head.regime, head.part)
            and not (stage.operator.apart or _is_replicated_sink(stage))
            and (not kept or keeps[head] in ("", kept))
            and not (isinstance(head.operator, SourceOperator) and (kept or _varies(stage)))
        )
        if fits:
            heads[stage] = head
            keeps[head] = keeps[head] or kept
    return heads


def _is_replicated_sink(stage: Stage) -> bool:
    """Whether it waits for whole epochs while those before it pass everything on."""
    return stage.operator.sink and isinstance(stage.regime, Replicated)


def _varies(stage: Stage) -> bool:
    """Whether what a stage makes depends on more than its input."""
    return stage.operator.asks or not stage.operator.repeatable


def _keeps(stage: Stage) -> str:
    """How the state of a stage is kept, if it has any."""
    if stage.operator.state == "none":
        return ""
    return "as it is" if isinstance(stage.operator, UserVertex) else "complete"


def _on_driver(stage: Stage) -> bool:
    operator = stage.operator
    if isinstance(operator, SourceOperator):
        return operator.source.on_driver
    return operator.on_driver


def _lay_out(
    flow: Flow,
    stages: Sequence[Stage],
    heads: dict[Stage, Stage],
    parallelism: int,
    recorded: Mapping[str, int],
    default: Regime,
    promised: Mapping[str, Guarantee],
) -> PhysicalPlan:
    members: dict[Stage, list[Stage]] = {}
    for stage in stages:
        if stage in heads:
            members.setdefault(heads[stage], []).append(stage)
    chains: list[Chain] = []
    where: dict[Stage, tuple[int, int]] = {}
    next_node = 0
    for head, run in members.items():
        check_regimes(run, regime_of(head, default))
        shards = recorded.get(head.name) or _shards(head, parallelism, chains, where)
        named = [stage.name for stage in run if stage.named]
        index = len(chains)
        for position, stage in enumerate(run):
            where[stage] = (index, position)
        chains.append(
            Chain(
                index,
                named[-1] if named else run[-1].name,
                tuple(_planned(stage, heads, where) for stage in run),
                shards,
                next_node,
                _on_driver(head),
                _loops(head.loop),
                regime_of(head, default),
                pause_of(run),
                head.part,
                reduce(Guarantee.join, (promised[stage.name] for stage in run)),
            )
        )
        next_node += shards
    links = _links(stages, heads, where)
    _check_fed(chains, links)
    grids = [g for s in stages if (g := s.operator.cut_grid_us()) is not None]
    return PhysicalPlan(
        flow.name,
        tuple(chains),
        tuple(links),
        min(grids) if grids else None,
        {node: chain.index for chain in chains for node in chain.nodes},
    )


def _check_fed(chains: Sequence[Chain], links: Sequence[Link]) -> None:
    """Refuse nodes that nothing leads to: they would never end, and hold up those behind them."""
    for chain in chains:
        into = [link for link in links if link.target_chain == chain.index]
        if into and all(isinstance(link.exchange, Forward) for link in into):
            fed = max(chains[link.source_chain].shards for link in into)
            if fed < chain.shards:
                raise SettingsError(
                    f"stage {chain.stages[0].name!r}: shards={chain.shards}, but its rows stay in "
                    f"the {fed} shards that they come from; say by which columns to divide them "
                    "(partitionBy, or keyBy before it), or leave shards out",
                    stage=chain.stages[0].name,
                )


def _planned(
    stage: Stage, heads: dict[Stage, Stage], where: dict[Stage, tuple[int, int]]
) -> PlannedStage:
    parent = None
    if heads[stage] is not stage:
        source = stage.inputs[0]
        parent = (where[source.stage][1], source.port)
    return PlannedStage(stage.name, stage.operator, stage.outputs, parent, stage.on_error or STOP)


def _shards(
    head: Stage, parallelism: int, chains: Sequence[Chain], where: dict[Stage, tuple[int, int]]
) -> int:
    follows = _followed(head.operator, chains)
    if follows is not None:
        return follows.shards
    if isinstance(head.operator, SourceOperator):
        return head.operator.source.shards(parallelism)
    exchanges = [source.exchange for source in head.inputs]
    if _on_driver(head) or any(isinstance(exchange, Single) for exchange in exchanges):
        return 1
    if head.shards is not None:
        if head.shards < 1:
            raise SettingsError(f"stage {head.name!r}: shards must be at least 1")
        return head.shards
    if all(isinstance(exchange, Forward) for exchange in exchanges):
        origins = [_origin(source)[0].stage for source in head.inputs]
        known = [chains[where[stage][0]].shards for stage in origins if stage in where]
        return max(known, default=parallelism)
    return parallelism


def _followed(operator: Operator, chains: Sequence[Chain]) -> Chain | None:
    """The chain whose epochs a persisted stream gives on."""
    if not (isinstance(operator, SourceOperator) and isinstance(operator.source, PersistSource)):
        return None
    write = operator.source.write
    return next(c for c in chains if any(stage.operator is write for stage in c.stages))


def _loops(loop: Loop | None) -> tuple[str, ...]:
    return () if loop is None else (*_loops(loop.parent), loop.name)


def _origin(source: Input) -> tuple[Input, tuple[Shift, ...]]:
    """The input that rows really come from, and the loop boundaries on the way, in order."""
    shifts: list[Shift] = []
    while isinstance(source.stage.operator, TimeShift):
        stage = source.stage
        loop = stage.loop
        bound = None
        if isinstance(stage.operator, Leave):
            inner = stage.inputs[0].stage.loop
            loop = inner
        elif isinstance(stage.operator, Again):
            bound = stage.operator.iterations_max
        shifts.append(Shift(stage.operator.kind, loop.name if loop else "", bound))
        source = stage.inputs[0]
    return source, tuple(reversed(shifts))


def _links(
    stages: Sequence[Stage], heads: dict[Stage, Stage], where: dict[Stage, tuple[int, int]]
) -> list[Link]:
    links: list[Link] = []
    for stage in stages:
        if heads.get(stage) is not stage:
            continue
        for port, source in enumerate(stage.inputs):
            origin, shifts = _origin(source)
            chain, position = where[origin.stage]
            links.append(
                Link(
                    len(links),
                    chain,
                    position,
                    origin.port,
                    where[stage][0],
                    port,
                    source.exchange,
                    source.stage.outputs[source.port],
                    shifts,
                )
            )
    return links


def route(exchange: Exchange) -> str:
    """One word for explain()."""
    if isinstance(exchange, Hash):
        return f"hash({', '.join(exchange.columns)})"
    return {Forward: "forward", Single: "single", Broadcast: "broadcast"}[type(exchange)]
