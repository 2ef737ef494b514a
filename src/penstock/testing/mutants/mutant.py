"""A mutant: a function of ``core/`` is replaced by one that leaves out one thing.

A mutant that survives many seeds means that the simulator does not test that part of the protocol
(or that the part is not needed).  A mutant names its target by module and name, so it attacks the
code that a running flow executes, and changes nothing about how the simulator builds its machines:

    @mutant("receivers refuse other incarnations", "penstock.core.node.intake:Intake.accept")
    def no_fence(real, self, message): ...

The replacement is given the real function first.  The mutant's name is the replacement's.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import CodeType
from typing import Any, NamedTuple

__all__ = ["Flows", "Mutant", "Replacement", "applied", "code_of", "mutant"]

Replacement = Callable[..., Any]
"""Called with the real function, then with that function's arguments."""


class Flows(Enum):
    """The flows among which a mutant is looked for: the beginnings of the names of their runs."""

    LAYERED = "layers"
    """Causal stages in layers."""
    MIXED = "layers:mixed"
    """All regimes."""
    PROMISED = "layers:promised"
    """Guarantees below exactly once."""
    PLANNED = "planned"
    """Laid out as the planner does it, with hosts of many nodes."""
    ROUGH = "planned:rough"
    """The same, where hosts, links, the store and clocks misbehave."""
    ROUGH_LONG = "planned:rough:long"
    """The same for long: logs are turned on and off, hosts and driver freeze for long."""
    LAYERED_LONG = "layers:rough:long"
    """Causal stages in layers, on such hosts for long."""
    MIXED_ROUGH = "layers:mixed:rough"
    """All regimes, on hosts that misbehave."""
    MIXED_LONG = "layers:mixed:long"
    """All regimes for long."""
    MIXED_ROUGH_LONG = "layers:mixed:rough:long"
    """The same for long."""
    PROMISED_ROUGH = "layers:promised:rough"
    """Guarantees below exactly once, on hosts that misbehave."""
    FAN_OUT = "fan_out"
    """An exchange that feeds one or two branches."""
    TWO_LOOPS = "two_loops"
    """Two loops, side by side or one after the other."""
    TWO_LOOPS_MIXED = "two_loops:mixed"
    """The same with all regimes."""
    TWO_LOOPS_ROUGH = "two_loops:rough"
    """The same on hosts of many nodes that misbehave."""
    REPLICAS = "replicas"
    """Rings of replicas that share records."""
    REPLICAS_ROUGH = "replicas:rough"
    """The same, where links, the store, clocks and the driver misbehave, and siblings die."""
    REPLICAS_MIXED_ROUGH = "replicas:mixed:rough"
    """The same beside nodes of all regimes."""
    LIVES = "hosts"
    """The life of a flow on its hosts, from its start to its end."""
    PLAIN = "plain"
    """Flows without recovery."""


@dataclass(frozen=True)
class Mutant:
    """What to replace, and where to look for the violation."""

    name: str
    leaves_out: str
    changes: Mapping[str, Replacement]
    """By target, ``module:function`` or ``module:Class.method``."""
    flows: Flows = Flows.LAYERED
    seed: int = 0
    """The first seed to try: one that is known to catch it."""


def mutant(
    leaves_out: str,
    *targets: str,
    flows: Flows = Flows.LAYERED,
    seed: int = 0,
    also: Mapping[str, Replacement] | None = None,
) -> Callable[[Replacement], Mutant]:
    """Make a mutant of a replacement for each of the targets; ``also`` replaces others."""

    def make(replacement: Replacement) -> Mutant:
        changes = {**dict.fromkeys(targets, replacement), **(also or {})}
        name = replacement.__name__.replace("_", "-")
        return Mutant(name, leaves_out, changes, flows, seed)

    return make


class _Place(NamedTuple):
    """An attribute of a class or module."""

    owner: Any
    name: str
    real: Any


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run the body with the mutant's replacements in this process."""
    places: list[_Place] = []
    try:
        for target, replacement in mutant.changes.items():
            found = _places(target)
            changed = _replaced(found[0].real, replacement)
            for place in found:
                setattr(place.owner, place.name, changed)
            places += found
        yield
    finally:
        for place in reversed(places):
            setattr(place.owner, place.name, place.real)


def code_of(target: str) -> CodeType:
    """The code of a target, by which a tracer recognises it."""
    real = _places(target)[0].real
    code: CodeType = inspect.unwrap(_function(real)).__code__
    return code


def _places(target: str) -> list[_Place]:
    """Every attribute that holds a target: modules import functions by name."""
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    *classes, name = path.split(".")
    owner = functools.reduce(getattr, classes, module)
    if classes:
        if name not in vars(owner):
            raise LookupError(f"{target} is not defined there")
        return [_Place(owner, name, vars(owner)[name])]
    real = getattr(module, name)
    others = [
        other
        for other_name, other in sorted(sys.modules.items())
        if other_name.startswith("penstock.") and vars(other).get(name) is real
    ]
    return [_Place(other, name, real) for other in others]


def _replaced(real: Any, replacement: Replacement) -> Any:
    changed = _bound(_function(real), replacement)
    is_property = isinstance(real, property | functools.cached_property)
    return property(changed) if is_property else changed


def _function(real: Any) -> Any:
    if isinstance(real, property):
        return real.fget
    return real.func if isinstance(real, functools.cached_property) else real


def _bound(real: Any, replacement: Replacement) -> Replacement:
    @functools.wraps(real)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return replacement(real, *args, **kwargs)

    return changed
