"""Names of simulated runs: a seed and every switch that decides what it runs.

A number alone draws its switches.  A name says them all, so that a switch which is added later
never changes what a name runs:

    layers:65               a random layered graph, causal as a whole
    layers:mixed:1371       the same with regimes of all kinds and persisted edges
    two_loops:promised:12   two loops; some sinks promise less than exactly once
    planned:rough:7         laid out as by the planner; hosts, links, store and clocks misbehave
    fan_out:852             two shards of everything, an exchange that feeds several branches
    replicas:3022           stages of replicas: rings, take-over, records of tuples
    replicas:mixed:rough:4  the same on hosts of nodes, whose sinks they may read
    plain:3                 a flow without recovery, connections that break, windows that fill
    hosts:12                the life of a flow on its hosts: start, losses, giving up, end
    planned:rough:long:7    many epochs; logs are turned on and off, hosts and driver freeze long
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from penstock.errors import SettingsError

__all__ = ["LAYOUTS", "LIVES", "PLAIN", "REPLICAS", "SWITCHES", "Case", "case_of"]

LAYOUTS = ("layers", "two_loops", "planned", "fan_out", "replicas", "hosts", "plain")
REPLICAS = "replicas"
LIVES = "hosts"
PLAIN = "plain"
SWITCHES = ("mixed", "promised", "rough", "long", "often")

PLANNED_SHARE = 0.3
TWO_LOOPS_SHARE = 0.1
MIXED_SHARE = 0.6
"""Share of the random graphs that have mixed regimes."""
PROMISED_SHARE = 0.4
"""Share of the others that promise less than exactly once somewhere."""
REPLICAS_SHARE = 0.25
NEIGHBOURS_SHARE = 0.3
"""Share of the flows of replicas that have nodes of all regimes beside them."""
ROUGH_SHARE = 0.6
LONG_SHARE = 0.1
OFTEN_SHARE = 0.3
"""Share of the flows of replicas that tell each other things often."""
LIVES_SHARE = 0.08
PLAIN_SHARE = 0.03


@dataclass(frozen=True)
class Case:
    """A seed and its switches.

    >>> Case.parse("layers:mixed:1371") == Case(1371, "layers", mixed=True)
    True
    >>> str(Case(7, "planned", rough=True))
    'planned:rough:7'
    """

    seed: int
    layout: str = "layers"
    mixed: bool = False
    """Regimes of all kinds."""
    promised: bool = False
    """Some sinks promise less than exactly once."""
    rough: bool = False
    """Hosts freeze, links break, the store and the clocks misbehave."""
    long: bool = False
    """Many epochs, in which logs are turned on and off; what freezes does so for long."""
    often: bool = False
    """(Replicas) what comes is told as soon as there is enough of it, not only now and then."""

    @classmethod
    def parse(cls, name: str) -> Case:
        """The case with a name."""
        layout, *switches, seed = name.split(":") if ":" in name else ("", name)
        if layout not in LAYOUTS or not set(switches) <= set(SWITCHES) or not seed.isdecimal():
            raise SettingsError(
                f"{name!r} names no run: give LAYOUT[:SWITCH…]:SEED, where the layout is one of "
                f"{', '.join(LAYOUTS)} and switches are {', '.join(SWITCHES)}",
                name=name,
            )
        return cls(int(seed), layout, **dict.fromkeys(switches, True))

    @classmethod
    def drawn(cls, seed: int) -> Case:
        """What a number alone stands for."""
        way = Random(f"layout of {seed}").random()
        if way < LIVES_SHARE + PLAIN_SHARE:
            return cls(seed, LIVES if way < LIVES_SHARE else PLAIN)
        random = Random(f"switches of {seed}")
        rough = random.random() < ROUGH_SHARE
        if random.random() < REPLICAS_SHARE:
            return cls.of_replicas(seed)
        long = Random(f"length of {seed}").random() < LONG_SHARE
        if random.random() < PLANNED_SHARE:
            return cls(seed, "planned", rough=rough, long=long)
        layout = "two_loops" if random.random() < TWO_LOOPS_SHARE else "layers"
        mixed = random.random() < MIXED_SHARE
        promised = not mixed and random.random() < PROMISED_SHARE
        return cls(seed, layout, mixed, promised, rough, long)

    @classmethod
    def of_replicas(cls, seed: int) -> Case:
        """What a number stands for where only replicas are simulated."""
        rough = Random(f"switches of {seed}").random() < ROUGH_SHARE
        mixed = Random(f"neighbours of {seed}").random() < NEIGHBOURS_SHARE
        long = rough and Random(f"length of {seed}").random() < LONG_SHARE
        often = Random(f"pace of {seed}").random() < OFTEN_SHARE
        return cls(seed, REPLICAS, mixed, rough=rough, long=long, often=often)

    def __str__(self) -> str:
        on = [switch for switch in SWITCHES if getattr(self, switch)]
        return ":".join((self.layout, *on, str(self.seed)))

    def at(self, seed: int) -> Case:
        """The same switches with another seed."""
        return replace(self, seed=seed)


def case_of(seed: int | str | Case) -> Case:
    """The case that a seed, a name or a case stands for."""
    if isinstance(seed, Case):
        return seed
    number = isinstance(seed, int) or seed.isdecimal()
    return Case.drawn(int(seed)) if number else Case.parse(str(seed))
