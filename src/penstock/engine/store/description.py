"""A flow's plan as its store describes it: ``flow.json``.

What the driver runs is a plan of operators and functions; what recovery needs of it are names,
shards and edges.  These are plain, so they outlive the driver: a process that has only the store
can say what is in it, and what a rollback would do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.errors import SettingsError
from penstock.planning.physical import PhysicalPlan, PlannedStage, route
from penstock.storage import StoreLike, storage_of

__all__ = ["FLOW_FILE", "ChainInfo", "FlowDescription", "LinkInfo", "StageInfo", "describe"]

FLOW_FILE = "flow.json"
_FORMAT = 1


@dataclass(frozen=True)
class StageInfo:
    """A stage as the user wrote it."""

    name: str
    kind: str
    state: str
    """"none", "epoch", "ordered" …: what :class:`penstock.operators.base.Operator` says."""
    about: str = ""
    """What it does, in words, and the columns that it makes: where it has state, that must fit."""


@dataclass(frozen=True)
class ChainInfo:
    """Stages fused into one node per shard."""

    name: str
    stages: tuple[StageInfo, ...]
    shards: int
    first_node: int
    kind: str
    """What its nodes lose when they die: a :class:`penstock.core.causal.graph.NodeKind`."""
    regime: str
    loops: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()

    @property
    def nodes(self) -> range:
        """Its nodes' numbers."""
        return range(self.first_node, self.first_node + self.shards)

    @property
    def keeps_state(self) -> bool:
        """Whether its nodes save checkpoints."""
        return self.kind in (NodeKind.STATEFUL.value, NodeKind.ORDERED.value)


@dataclass(frozen=True)
class LinkInfo:
    """Rows from one chain to another."""

    source: str
    target: str
    exchange: str
    port: int = 0


@dataclass(frozen=True)
class FlowDescription:
    """Chains, links and the recovery graph of a flow."""

    flow: str
    chains: tuple[ChainInfo, ...]
    links: tuple[LinkInfo, ...]
    graph: CausalGraph
    together: bool = False
    """Whether all nodes restart when one is lost."""
    foreign: Mapping[str, Sequence[tuple[int, Sequence[str]]]] = field(default_factory=dict)
    """Per node: its checkpoints up to a key were made when the flow had another shape, and its
    chain these stages; see :mod:`penstock.engine.store.changed_flow`."""
    begun: Mapping[str, int] = field(default_factory=dict)
    """Chains with state that were new in a flow that had run: the epoch after which they began."""

    def chain_of(self, node: int) -> ChainInfo:
        """The chain that a node is a shard of."""
        return next(chain for chain in self.chains if node in chain.nodes)

    def node_name(self, node: int) -> str:
        """Such as ``counts[1]``."""
        chain = self.chain_of(node)
        return f"{chain.name}[{node - chain.first_node}]"

    def to_plain(self) -> dict[str, Any]:
        """A form that JSON can carry."""
        return {
            "format": _FORMAT,
            "flow": self.flow,
            "chains": [asdict(chain) for chain in self.chains],
            "links": [asdict(link) for link in self.links],
            "graph": _plain_graph(self.graph),
            "together": self.together,
            "foreign": dict(self.foreign),
            "begun": dict(self.begun),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> FlowDescription:
        """The description that :meth:`to_plain` gave."""
        return cls(
            plain["flow"],
            tuple(
                ChainInfo(
                    **{
                        **chain,
                        "stages": tuple(StageInfo(**stage) for stage in chain["stages"]),
                        "loops": tuple(chain["loops"]),
                        "sinks": tuple(chain["sinks"]),
                    }
                )
                for chain in plain["chains"]
            ),
            tuple(LinkInfo(**link) for link in plain["links"]),
            _graph_from(plain["graph"]),
            plain["together"],
            {
                node: tuple((key, tuple(stages)) for key, stages in some)
                for node, some in plain["foreign"].items()
            },
            dict(plain["begun"]),
        )

    def write(self, store: StoreLike) -> None:
        """Put it into a store, durably; nothing happens if it is there already."""
        data = json.dumps(self.to_plain(), indent=1).encode()
        storage = storage_of(store)
        with suppress(FileNotFoundError):
            if storage.read(FLOW_FILE) == data:
                return
        storage.write(FLOW_FILE, data)

    @classmethod
    def read(cls, store: StoreLike) -> FlowDescription | None:
        """What a store says; None: it says nothing."""
        storage = storage_of(store)
        path = f"{storage}/{FLOW_FILE}"
        try:
            plain = json.loads(storage.read(FLOW_FILE))
            if plain["format"] != _FORMAT:
                raise SettingsError(
                    f"{path} has format {plain['format']}, this version of Penstock reads "
                    f"{_FORMAT}; use the version that wrote it"
                )
            return cls.from_plain(plain)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"{path} is damaged ({error!r}); remove it and start the flow again, which writes "
                "it anew",
                path=path,
            ) from error


def describe(plan: PhysicalPlan, graph: CausalGraph, together: bool = False) -> FlowDescription:
    """Describe a plan."""
    return FlowDescription(
        plan.flow,
        tuple(
            ChainInfo(
                chain.name,
                tuple(
                    StageInfo(
                        stage.name,
                        stage.operator.kind,
                        stage.operator.state,
                        _about(stage) if stage.operator.state != "none" else "",
                    )
                    for stage in chain.stages
                ),
                chain.shards,
                chain.first_node,
                graph.kinds[chain.first_node].value,
                str(chain.regime),
                chain.loops,
                tuple(chain.sinks),
            )
            for chain in plan.chains
        ),
        tuple(
            LinkInfo(
                plan.chains[link.source_chain].name,
                plan.chains[link.target_chain].name,
                route(link.exchange),
                link.target_port,
            )
            for link in plan.links
        ),
        graph,
        together,
    )


def _about(stage: PlannedStage) -> str:
    columns = [f"{field.name}: {field.type}" for schema in stage.outputs for field in schema]
    return f"{stage.operator.describe()} -> {', '.join(columns)}"


def _plain_graph(graph: CausalGraph) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for given in fields(graph):
        if not given.init:
            continue
        value = getattr(graph, given.name)
        if given.name == "kinds":
            plain["kinds"] = {str(node): kind.value for node, kind in value.items()}
        elif isinstance(value, Mapping):
            plain[given.name] = {str(node): found for node, found in value.items()}
        else:
            plain[given.name] = sorted(value)
    return plain


def _graph_from(plain: Mapping[str, Any]) -> CausalGraph:
    found: dict[str, Any] = {}
    for given in fields(CausalGraph):
        value = plain.get(given.name)
        if not given.init or value is None:
            continue
        if given.name == "kinds":
            found["kinds"] = {int(node): NodeKind(kind) for node, kind in value.items()}
        elif given.name == "parents":
            found["parents"] = {int(node): tuple(some) for node, some in value.items()}
        elif isinstance(value, Mapping):
            found[given.name] = {int(node): one for node, one in value.items()}
        else:
            found[given.name] = frozenset(value)
    return CausalGraph(**found)
