"""Faults of replicas: which hosts fail together, and what happens in the middle of a hand-over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing.simulator.host_faults import strike_hosts

if TYPE_CHECKING:
    from penstock.testing.simulator.roles.agent import Agent
    from penstock.testing.simulator.roles.part import ReplicatedPart

__all__ = ["FAULTS", "SIBLING", "strike_replicas"]

FAULTS = (
    "crash",
    "halfway",
    "freeze",
    "blink",
    "suspicion",
    "connection",
    "group",
    "path",
    "beyond",
    "again",
    "anew",
    "move",
    "controller",
)
SIBLING = "sibling"
"""(Rough runs) the next host that joins a ring loses one of those that it learns from."""


def strike_replicas(part: ReplicatedPart, what: str) -> None:
    """Something fails now."""
    world = part.world
    random, cluster = world.random, part.cluster
    part.monitor.faults += 1
    if what == SIBLING:
        part.cut_siblings += 1
        return
    if what not in FAULTS or what in ("suspicion", "connection"):
        strike_hosts(world, cluster, what)
        return
    victims = _victims(part, what)
    world.count(what)
    world.note(f"FAULT {what} {[victim.number for victim in victims]}")
    if what == "controller":
        world.driver.lose_controller()
    for victim in victims:
        if what == "anew":
            if world.driver.rings is not None and not cluster.driver_sleeps:
                world.driver.rings.begin_anew(victim)
            if random.random() < 0.5:
                cluster.kill(random.choice(victims).process)
        elif what in ("freeze", "blink"):
            steps = random.randint(1, 60) if what == "blink" else random.randint(90, 400)
            victim.process.frozen_until = world.steps + steps
        elif what == "halfway":
            part.cut_short = victim.host
        elif what == "move":
            part.cut_move = random.choice(("sender", "target"))
        else:
            cluster.kill(victim.process)


def _neighbours(part: ReplicatedPart, live: list[Agent]) -> list[Agent]:
    """All hosts of two stages next to each other, neither a source: no depth covers that."""
    stages = part.shape.stages
    inner = [
        stage for stage in stages.roles if stages.parents[stage] and stages.children.get(stage)
    ]
    stage = part.world.random.choice(inner)
    both = {stage, part.world.random.choice(stages.children[stage])}
    return [agent for agent in live if not both.isdisjoint(agent.machines)]


def _victims(part: ReplicatedPart, what: str) -> list[Agent]:
    random = part.world.random
    live = [agent for agent in part.living() if not part.cluster.is_frozen(agent.host)]
    if not live or what == "controller":
        return []
    victim = random.choice(live)
    stage = random.choice(sorted(victim.machines)) if victim.machines else None
    if what == "group":
        return [agent for agent in live if stage in agent.machines] or [victim]
    if what == "path":
        near = () if stage is None else part.shape.stages.children.get(stage, ())
        below = [agent for agent in live if not agent.machines.keys().isdisjoint(near)]
        return [victim, random.choice(below)] if below else [victim]
    if what == "beyond":
        return _neighbours(part, live)
    if what == "again":
        return [max(live, key=lambda agent: agent.number)]
    return [victim]
