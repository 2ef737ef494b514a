"""Faults: what goes wrong in a simulated run, and when.  The seed chooses both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.causal.graph import NodeKind
from penstock.core.control.recovery import CONTRADICTIONS_MAX
from penstock.testing.simulator.host_faults import strike_hosts
from penstock.testing.simulator.lives.faults import LIFE
from penstock.testing.simulator.roles.faults import FAULTS as ROLE_FAULTS
from penstock.testing.simulator.roles.faults import SIBLING, strike_replicas

if TYPE_CHECKING:
    from penstock.testing.simulator.world import World

__all__ = [
    "ALL_FAULTS",
    "CONTRADICTION",
    "DAMAGE",
    "FAULTS",
    "HOSTS",
    "LONG",
    "ROLLBACK",
    "plan_faults",
    "strike",
]

FAULTS = (
    "crash",
    "several",
    "adjacent",
    "during_recovery",
    "controller",
    "connection",
    "slow",
    "damage",
)
ROLLBACK = "rollback"
"""(Mixed regimes) a person asks for it."""
HOSTS = ("host", "several_hosts", "host_during_recovery")
"""(Planned flows) a host dies, with all its nodes; or two; or one while others recover."""
DAMAGE = "damage"
"""A node's newest checkpoint cannot be read any more."""
CONTRADICTION = "contradiction"
"""(Planned flows) a node that restarts finds that it cannot repeat what others know of it."""
ROUGH = (
    *("host", "several_hosts", "host_during_recovery", "host", "several_hosts"),
    *("machine", "machine", "freeze", "freeze", "suspicion", "partition", "half_open"),
    *("connection", "store_slow", "store_refuses", "clock", "driver", "plan", "damage"),
)
"""(Rough runs) what happens to hosts, to what connects them, to the store and to clocks."""
ROLE_ROUGH = (
    *("host", "several_hosts", "machine", "partition", "half_open", "clock", "store_slow"),
    *("store_refuses", "driver", "partition", "half_open", "crash", SIBLING, SIBLING, SIBLING),
)
"""(Rough runs of replicas) the same, as far as it concerns replicas."""
LONG = ("long_freeze", "long_freeze", "driver_freeze", "driver_freeze")
"""(Long rough runs) a host, or the driver, does nothing for up to two minutes."""
ROUGH_EFFECTS = ("unsynced", "torn", "moved", "zombie", "unreadable", "missed")
"""(Rough runs) what follows from faults and is counted, too."""
ALL_FAULTS = (
    *FAULTS,
    *HOSTS,
    CONTRADICTION,
    ROLLBACK,
    "stale",
    *ROUGH,
    *LONG,
    *ROUGH_EFFECTS,
    *ROLE_FAULTS,
    *LIFE,
    SIBLING,
)


def plan_faults(world: World, allowed: tuple[str, ...] | None = None) -> None:
    """Choose when what fails, and which edges are slow."""
    random = world.random
    if world.shape.replicated is not None:
        number = random.choice((0, 1, 1, 2, 3, 4, 6)) if allowed != () else 0
        number += 2 * world.rough
        last = 60 + 20 * world.shape.replicated.rows + 60 * bool(world.shape.graph.order)
        kinds = allowed or ((*ROLE_FAULTS, *ROLE_ROUGH) if world.rough else ROLE_FAULTS)
        kinds += LONG if world.long and allowed is None else ()
        world.pending = sorted(
            (random.randint(3, last), random.choice(kinds)) for _ in range(number)
        )
        return
    number = random.choice((0, 1, 2, 3, 4, 5, 7))
    last = 110 * world.shape.epochs
    faults: tuple[str, ...] = (*FAULTS, ROLLBACK) if world.mixed else FAULTS
    if world.shape.hosts:
        number = random.choice((1, 3, 5, 8))
        last *= max(1, len(world.shape.hosts) // 6)
        faults = (*FAULTS, *HOSTS, *HOSTS, *HOSTS, CONTRADICTION)
    if world.cluster is not None:
        number = random.choice((1, 2, 4, 6, 9))
        faults = (*ROUGH, ROLLBACK) if world.mixed else (*ROUGH, CONTRADICTION)
    if world.long:
        number = min(2 * number, 9)  # a node that is lost more than ten times ends its flow
        faults += LONG if world.cluster is not None else ()
    world.pending = sorted((random.randint(5, last), random.choice(faults)) for _ in range(number))
    edges = [(u, v) for v, us in world.shape.graph.parents.items() for u in us]
    world.laggards = frozenset(edge for edge in edges if random.random() < 0.25)
    if world.long:
        nodes = world.shape.graph.order
        world.hard_of_hearing = frozenset(node for node in nodes if random.random() < 0.25)


def strike(world: World, what: str) -> None:
    """Something fails now; a fault during recovery waits for one."""
    random = world.random
    later = what.endswith("during_recovery") or what == CONTRADICTION
    if later and world.driver.controller is not None and world.driver.controller.quiet:
        world.waiting.append(what)
        return
    if what == CONTRADICTION:
        _contradict(world)
        return
    if what == ROLLBACK:
        world.faults[what] += world.driver.rollback()
        return
    if what == DAMAGE:
        _damage(world)
        return
    if world.replicas is not None:
        strike_replicas(world.replicas, what)
        return
    if world.cluster is not None:
        strike_hosts(world, world.cluster, what)
        return
    victims = _victims(world, what)
    world.count(what)
    world.note(f"FAULT {what} {victims}")
    if what == "controller":
        if random.random() < 0.5:
            world.driver.controller_steps = random.randint(1, 15)
        else:
            world.driver.lose_controller()
    elif what == "connection":
        world.network.cut()
    for victim in victims:
        if what == "slow":
            world.processes[victim].paused = random.randint(1, 30)
            world.suspect(victim)
        else:
            world.kill(victim)


def _victims(world: World, what: str) -> list[int]:
    random = world.random
    live = [node for node, process in world.processes.items() if process.alive]
    if not live or what in ("controller", "connection"):
        return []
    if what in HOSTS:
        return _on_hosts(world, live, 2 if what == "several_hosts" else 1)
    if what == "adjacent":
        graph = world.shape.graph
        node = random.choice(live)
        near = [n for n in (*graph.parents[node], *graph.children[node]) if n in live]
        return [node, random.choice(near)] if near else [node]
    if what == "several":
        return random.sample(live, min(len(live), random.choice((2, 2, 3))))
    if what == "during_recovery":
        return random.sample(live, min(len(live), random.choice((1, 1, 2))))
    return [random.choice(live)]


def _on_hosts(world: World, live: list[int], number: int) -> list[int]:
    """The nodes of one or more hosts; that of the sinks is spared, mostly."""
    random = world.random
    hosts = world.shape.hosts
    candidates = sorted({hosts[node] for node in live})
    if len(candidates) > 1 and random.random() < 0.9:
        candidates.remove(candidates[0])
    chosen = random.sample(candidates, min(number, len(candidates)))
    return [node for node in live if hosts[node] in chosen]


def _damage(world: World) -> None:
    """Damage a newest checkpoint; there is one before it, and no other node has that trouble.

    After a rollback by hand to the oldest epoch there may be none before it that is of use.
    """
    store, gone = world.store, world.driver.retention.gone_before()
    if world.shape.global_every is not None or world.faults[DAMAGE]:
        return
    can = [
        node
        for node, kept in store.checkpoints.items()
        if len(kept) > 2
        and kept[-2].checkpoint.report.completed >= gone[node]
        and node not in world.shape.graph.units
    ]
    if can:
        node = world.random.choice(can)
        store.damaged.add((node, store.checkpoints[node][-1].key))
        world.count(DAMAGE)
        world.note(f"FAULT damage [{node}]")


def _contradict(world: World) -> None:
    """A node that is replaying gives up, if all of the flow can start from whole epochs."""
    graph = world.shape.graph
    with_state = [
        n for n, kind in graph.kinds.items() if kind in (NodeKind.STATEFUL, NodeKind.ORDERED)
    ]
    replaying = [p for p in world.processes.values() if p.alive and p.machine.replaying]
    controller = world.driver.controller
    if controller is None or controller.failed.issuperset(graph.order):
        return  # nothing is left that could start over
    if world.faults[CONTRADICTION] >= CONTRADICTIONS_MAX:
        return
    if replaying and all(map(graph.is_clean, with_state)):
        world.random.choice(replaying).contradict()
