"""Faults of rough runs: hosts, machines, connections, the store, clocks, the driver, plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.causal.graph import NodeKind
from penstock.testing.simulator.hosts import Cluster, Every

if TYPE_CHECKING:
    from penstock.testing.simulator.world import World

__all__ = ["strike_hosts"]


def strike_hosts(world: World, cluster: Cluster, what: str) -> None:
    """Something fails now."""
    random = world.random
    members = cluster.members
    until = world.steps + random.randint(5, 200)
    chosen = random.sample(members, min(2, len(members)))
    keys = [host.key for host in chosen]
    if what in ("partition", "half_open") and len(chosen) < 2:
        keys = [*keys, cluster.host_of_driver]
    if not chosen and what not in (
        "store_slow",
        "store_refuses",
        "driver",
        "plan",
        "connection",
    ):
        return
    world.count(what)
    world.note(f"FAULT {what} {keys}")
    match what:
        case "host" | "host_during_recovery":
            cluster.kill(chosen[0])
        case "several_hosts":
            for host in chosen:
                cluster.kill(host)
        case "machine":
            writing = {process.host for process in world.processes.values() if process.writes}
            busy = [host for host in members if host.key in writing]
            cluster.kill(random.choice(busy or members), machine=True)
        case "freeze":
            chosen[0].frozen_until = until
        case "long_freeze":
            chosen[0].frozen_until = world.steps + random.randint(100, 3000)
        case "driver_freeze":
            cluster.freeze_driver(random.randint(35, 100))
            if len(chosen) > 1:
                world.network.links.partition(keys[0], keys[1], until)
        case "suspicion":
            chosen[0].muted_until = until
        case "partition":
            world.network.links.partition(keys[0], keys[1], until)
        case "half_open":
            random.shuffle(keys)
            world.network.links.half_open(keys[0], keys[1], until)
        case "connection":
            world.network.cut()
        case "store_slow" | "store_refuses":
            world.store_until, world.store_slow = until, what == "store_slow"
        case "clock":
            chosen[0].offset_ms += random.choice((60, 400, 5_000))
            chosen[0].wall_ms += random.choice((-3_600_000, -50, 50, 3_600_000))
        case "driver":
            if random.random() < 0.5:
                world.driver.controller_steps = random.randint(1, 15)
            elif world.driver.controller is not None:
                world.driver.lose_controller()
        case "plan":
            _switch_plan(world)


def _switch_plan(world: World) -> None:
    """Another plan: checkpoints more or less often."""
    world.checkpoint_share = world.random.choice((0.1, 0.4, 0.9))
    if world.shape.global_every is not None:
        return
    graph = world.shape.graph
    for node in sorted(world.every.keys() - graph.units.keys()):
        if graph.kinds[node] is NodeKind.STATEFUL and world.shape.regimes.get(node) != "eager":
            world.every[node] = world.random.choice((1, 2, 3, 5))
            world.tell_node(node, Every(world.every[node]))
