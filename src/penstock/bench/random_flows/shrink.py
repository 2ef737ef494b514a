"""Makes a drawn flow that goes wrong smaller, as long as it still goes wrong in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from penstock.bench.random_flows.draw import Drawn, DrawnPiece, check, reached, result_of
from penstock.errors import UsageError

__all__ = ["shrink", "smaller"]

LEAST = {"hosts": 1, "parallelism": 1, "standby": 0}


def shrink(drawn: Drawn, fails: Callable[[Drawn], bool]) -> Drawn:
    """The smallest that ``fails`` among those found by leaving one thing out at a time."""
    while True:
        for one in smaller(drawn):
            if fails(one):
                drawn = one
                break
        else:
            return drawn


def smaller(drawn: Drawn) -> Iterator[Drawn]:
    """The same with one thing less, large things first; only flows that can be planned."""
    for one in _with_less(drawn):
        try:
            check(one)
        except UsageError:
            continue
        yield one


def _with_less(drawn: Drawn) -> Iterator[Drawn]:
    steps = drawn.steps
    results = [number for number, step in enumerate(steps) if result_of(step) is not None]
    for number in results if len(results) > 1 else []:
        yield replace(drawn, steps=reached(steps, without=number))
    for number in range(len(drawn.faults)):
        yield replace(drawn, faults=drawn.faults[:number] + drawn.faults[number + 1 :])
    for number, step in enumerate(steps):
        if step.inputs and number not in results:
            yield replace(drawn, steps=reached(_without(steps, number)))
    if drawn.regime is not None:
        yield replace(drawn, regime=None)
    for number, step in enumerate(steps):
        for less in _simpler(step):
            yield replace(drawn, steps=(*steps[:number], less, *steps[number + 1 :]))
    for name, least in LEAST.items():
        if drawn.options[name] != least:
            yield replace(drawn, options={**drawn.options, name: least})


def _simpler(step: DrawnPiece) -> Iterator[DrawnPiece]:
    if step.regime is not None:
        yield replace(step, regime=None)
    for name, least in (("shards", 1), ("jitter_ms", 0), ("repeats", 1_000_000), ("late", False)):
        if step.parameters.get(name, least) != least:
            yield replace(step, parameters={**step.parameters, name: least})


def _without(steps: tuple[DrawnPiece, ...], number: int) -> list[DrawnPiece]:
    """Who read from a step reads from what that read first; the step itself leads nowhere."""
    instead = steps[number].inputs[0]
    return [
        replace(step, inputs=tuple(instead if one == number else one for one in step.inputs))
        for step in steps
    ]
