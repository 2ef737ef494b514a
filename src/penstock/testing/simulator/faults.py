"""Faults: what goes wrong in a simulated run, and when.  The seed chooses both."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.simulator.world import World

__all__ = ["FAULTS", "ROLLBACK", "plan_faults", "strike"]

FAULTS = (
    "crash",
    "several",
    "adjacent",
    "during_recovery",
    "controller",
    "connection",
    "slow",
)
ROLLBACK = "rollback"
"""(Mixed regimes) a person asks for it."""


def plan_faults(world: World) -> None:
    """Choose when what fails, and which edges are slow."""
    random = world.random
    number = random.choice((0, 1, 2, 3, 4, 5, 7))
    last = 110 * world.shape.epochs
    faults = (*FAULTS, ROLLBACK) if world.mixed else FAULTS
    world.pending = sorted((random.randint(5, last), random.choice(faults)) for _ in range(number))
    edges = [(u, v) for v, us in world.shape.graph.parents.items() for u in us]
    world.laggards = frozenset(edge for edge in edges if random.random() < 0.25)


def strike(world: World, what: str) -> None:
    """Something fails now; a fault during recovery waits for one."""
    random = world.random
    if what == "during_recovery" and world.controller is not None and world.controller.quiet:
        world.waiting += 1
        return
    if what == ROLLBACK:
        world.faults[what] += world.rollback()
        return
    victims = _victims(world, what)
    world.count(what)
    world.note(f"FAULT {what} {victims}")
    if what == "controller":
        if random.random() < 0.5:
            world.controller_steps = random.randint(1, 15)
        else:
            world.lose_controller()
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
