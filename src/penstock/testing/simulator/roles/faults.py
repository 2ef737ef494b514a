"""Faults: what goes wrong in a simulated run, and when.  The seed chooses both."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.simulator.roles.world import Host, World

__all__ = ["FAULTS", "ROUGH", "plan_faults", "strike"]

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

ROUGH = ("partition", "half_open", "clock", "store_refuses", "driver")
"""(Rough runs) what happens besides to connections, clocks, the store and the driver."""


def plan_faults(world: World, allowed: tuple[str, ...] | None) -> None:
    """Choose when what fails; the number is often none or one."""
    random = world.random
    number = random.choice((0, 1, 1, 2, 3, 4, 6)) if allowed != () else 0
    last = 60 + 20 * world.shape.rows
    kinds = allowed or ((*FAULTS, *ROUGH) if world.rough else FAULTS)
    world.pending = sorted((random.randint(3, last), random.choice(kinds)) for _ in range(number))


def strike(world: World, what: str) -> None:
    """Something fails now."""
    random = world.random
    victims = _victims(world, what)
    world.faults[what] += 1
    world.note(f"FAULT {what} {[victim.number for victim in victims]}")
    world.monitor.faults += 1
    if what in ("controller", "driver"):
        if what == "driver":
            world.driver.steps_left = random.randint(1, 30)
        else:
            world.driver.restart()
        return
    if what in ROUGH:
        _strike_rough(world, what)
        return
    if what == "connection":
        world.network.cut()
    for victim in victims:
        if what == "anew":
            world.driver.begin_anew(victim)
            if random.random() < 0.5:
                world.driver.lose(random.choice(world.living()).number)
        elif what in ("freeze", "blink"):
            victim.frozen = random.randint(1, 60) if what == "blink" else random.randint(90, 400)
        elif what == "suspicion":
            world.driver.lose(victim.number)
        elif what == "halfway":
            world.cut_short = victim.number
        elif what == "move":
            world.cut_move = random.choice(("sender", "target"))
        else:
            world.kill(victim)
            if random.random() < 0.3:
                world.driver.lose(victim.number)


def _strike_rough(world: World, what: str) -> None:
    random = world.random
    until = world.steps + random.randint(5, 250)
    live = [host.number for host in world.living()]
    chosen = random.sample(live, min(2, len(live)))
    if what == "store_refuses":
        world.store_until = until
    elif what == "clock" and chosen:
        world.hosts[chosen[0]].offset_ms += random.choice((20, 400, 5_000))
    elif len(chosen) == 2 and what == "partition":
        world.network.links.partition(chosen[0], chosen[1], until)
    elif len(chosen) == 2:
        world.network.links.half_open(chosen[0], chosen[1], until)


def _neighbours(world: World, live: list[Host]) -> list[Host]:
    """All hosts of two stages next to each other, neither a source: no depth covers that."""
    stages = world.shape.stages
    inner = [
        stage for stage in stages.roles if stages.parents[stage] and stages.children.get(stage)
    ]
    stage = world.random.choice(inner)
    both = {stage, world.random.choice(stages.children[stage])}
    return [host for host in live if host.stage in both]


def _victims(world: World, what: str) -> list[Host]:
    random = world.random
    live = [host for host in world.living() if not host.frozen]
    if not live or what in ("connection", "controller", *ROUGH):
        return []
    victim = random.choice(live)
    if what == "group":
        return [host for host in live if host.stage == victim.stage]
    if what == "path":
        near = () if victim.stage is None else world.shape.stages.children.get(victim.stage, ())
        below = [host for host in live if host.stage in near]
        return [victim, random.choice(below)] if below else [victim]
    if what == "beyond":
        return _neighbours(world, live)
    if what == "again":
        newest = max(live, key=lambda host: host.number)
        return [newest]
    return [victim]
