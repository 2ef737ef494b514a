"""Faults of simulated lives, and what people do in them.  The seed chooses what, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.control.controller import FlowPhase

if TYPE_CHECKING:
    from penstock.testing.simulator.lives.world import LifeWorld

__all__ = ["FAULTS", "LIFE", "plan_faults", "strike"]

LIFE = ("raised", "failed", "stopped", "stuck", "deadly", "cut_short", "left", "lull")
"""What happens in lives only: stages raise, people stop, processes do not end, rows are deadly."""
LULL_MS = 61_000
FAULTS = (
    *("host", "host", "several_hosts", "freeze", "suspicion", "connection", "driver"),
    *("raised", "failed", "stopped", "stuck", "cut_short"),
    *("stopped", "left", "lull"),
)


def plan_faults(world: LifeWorld) -> None:
    """Choose when what happens."""
    random = world.random
    number = random.choice((0, 0, 1, 2, 3, 5))
    last_ms = random.choice((400, 3_000, 10_000))
    world.pending = sorted(
        (random.randint(50, last_ms), random.choice(FAULTS)) for _ in range(number)
    )


def strike(world: LifeWorld, what: str) -> None:
    """Something fails now."""
    random, driver = world.random, world.driver
    workers = [host for host in world.workers() if host.number not in driver.fenced]
    if driver.life.phase in (FlowPhase.ENDING, FlowPhase.ENDED) and what in ("driver", "lull"):
        return
    if not workers and what not in ("driver", "stopped"):
        return
    chosen = random.sample(workers, min(2, len(workers)))
    world.count(what)
    world.note("FAULT", what, *chosen)
    until_ms = world.now_ms + random.choice((200, 800, 4_000))
    match what:
        case "host":
            world.kill(chosen[0])
        case "several_hosts":
            for host in chosen:
                world.kill(host)
        case "freeze":
            chosen[0].frozen_ms = until_ms
        case "suspicion":
            chosen[0].muted_ms = until_ms
        case "connection":
            world.break_connection(chosen[0])
        case "driver":
            world.restart_driver()
        case "raised":
            chosen[0].raises(restarts=True)
        case "failed":
            chosen[0].raises(restarts=False)
        case "stopped":
            driver.stop()
        case "stuck":
            chosen[0].stuck = True
        case "left":
            driver.expects_failure = True
            world.ended(chosen[0])
        case "lull":
            world.lull_ms = world.now_ms + LULL_MS
        case "cut_short":
            world.cut_short = True
