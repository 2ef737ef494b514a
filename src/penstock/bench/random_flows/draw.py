"""Draws a flow, its settings and its faults from a seed.

What is drawn is plain JSON data, so the flow can be built again in another process, or with parts
left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.api import regimes
from penstock.api.flow import Flow, Stream
from penstock.api.regimes import Regime
from penstock.bench.random_flows.pieces import EVENT_PIECES, FlowPiece, Parameters, SourcePiece
from penstock.bench.random_flows.results import RESULTS, Result
from penstock.bench.random_flows.rows import Columns
from penstock.errors import SettingsError
from penstock.planning.physical import physical_plan

__all__ = [
    "DRIVER",
    "QUICK",
    "STOP",
    "Drawn",
    "DrawnPiece",
    "Fault",
    "build",
    "check",
    "draw",
    "models",
    "reached",
    "regime_of",
    "result_of",
]

SOURCE = SourcePiece()
PIECES: dict[str, FlowPiece] = {one.name: one for one in (SOURCE, *EVENT_PIECES, *RESULTS)}
ROWS_MAX = 40_000
STEPS_MAX = 5
RESULTS_MAX = 4
REDRAWN_MAX = 20

HOST, HOSTS, QUICK, DRIVER, STOP = "host", "hosts", "quick", "driver", "stop"
"""Faults: one host is killed, several at once, one soon after the last fault; the driver is killed;
the flow is stopped. After the last two the flow is started again."""

Chosen = tuple[str, dict[str, Any]]
"""A regime: its name and arguments."""


@dataclass(frozen=True)
class DrawnPiece:
    """A piece in its place; ``inputs`` are numbers of earlier steps."""

    piece: str
    inputs: tuple[int, ...] = ()
    parameters: Parameters = field(default_factory=dict)
    regime: Chosen | None = None


@dataclass(frozen=True)
class Fault:
    """What happens ``after_s`` seconds after the fault before it, or after the flow's start.

    ``picks`` choose the hosts.  An early fault does not wait for the flow to run.
    """

    kind: str
    after_s: float
    picks: tuple[float, ...] = ()
    early: bool = False


@dataclass(frozen=True)
class Drawn:
    """A flow, its settings and its faults."""

    seed: int
    steps: tuple[DrawnPiece, ...]
    options: dict[str, Any]
    regime: Chosen | None
    faults: tuple[Fault, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Drawn:
        """The other way."""
        steps = [
            DrawnPiece(
                one["piece"], tuple(one["inputs"]), one["parameters"], _chosen(one["regime"])
            )
            for one in found["steps"]
        ]
        faults = [Fault(**{**one, "picks": tuple(one["picks"])}) for one in found["faults"]]
        regime = _chosen(found["regime"])
        return cls(found["seed"], tuple(steps), found["options"], regime, tuple(faults))

    def name_of(self, number: int) -> str:
        """What a step's stage is called."""
        return f"{self.steps[number].piece}{number}"

    def shape(self) -> list[str]:
        """A line per step, for people."""
        lines = []
        for number, step in enumerate(self.steps):
            values = [f"{key}={value}" for key, value in step.parameters.items()]
            origin = ", ".join(self.name_of(one) for one in step.inputs)
            regime = "" if step.regime is None else f" [{regime_of(step.regime)}]"
            arrow = f"{origin} -> " if origin else ""
            lines.append(f"{arrow}{self.name_of(number)}({', '.join(values)}){regime}")
        return lines

    def lives(self) -> list[list[Fault]]:
        """The faults of each process or run of the flow, the last of which comes to its end."""
        lives: list[list[Fault]] = [[]]
        for fault in self.faults:
            lives[-1].append(fault)
            if fault.kind in (DRIVER, STOP):
                lives.append([])
        return lives


def draw(seed: int) -> Drawn:
    """A flow whose regimes the planner accepts, its settings and its faults."""
    chance = random.Random(seed)
    steps = _Drawing(chance).steps()
    options = {
        "hosts": chance.randint(1, 4),
        "parallelism": chance.randint(1, 3),
        "epochInterval": chance.choice(("50 ms", "100 ms", "200 ms")),
        "checkpointInterval": chance.choice(("100 ms", "300 ms", "1 second")),
        "drainTimeout": chance.choice(("300 ms", "1500 ms")),
        "standby": chance.choice((0, 0, 0, 1)),
    }
    plain = Drawn(seed, steps, options, None, _faults(chance))
    check(plain)
    for _ in range(REDRAWN_MAX):
        chosen = _with_regimes(plain, chance)
        try:
            check(chosen)
        except SettingsError:
            continue
        return chosen
    return plain


def build(drawn: Drawn, folder: Path) -> Flow:
    """The flow; its sinks write to folders below ``folder``."""
    flow = Flow("random")
    streams: list[Stream | None] = []
    for number, step in enumerate(drawn.steps):
        name, before = drawn.name_of(number), len(flow.stages)
        if step.piece == SOURCE.name:
            made: Stream | None = SOURCE.add(flow, name, step.parameters)
        else:
            inputs = [stream for one in step.inputs if (stream := streams[one]) is not None]
            made = PIECES[step.piece].build(name, inputs, step.parameters, folder)
        if step.regime is not None:
            for stage in flow.stages[before:]:
                Stream(flow, stage, 0).withRegime(regime_of(step.regime))
        streams.append(made)
    return flow


def check(drawn: Drawn) -> None:
    """Ask the planner; raises SettingsError where it refuses the regimes."""
    flow = build(drawn, Path("/nowhere"))
    regime = None if drawn.regime is None else regime_of(drawn.regime)
    physical_plan(flow, drawn.options["parallelism"], None, regime, "exactly-once")


def models(steps: Sequence[DrawnPiece]) -> list[Columns]:
    """What leaves each step, or what its sink must hold."""
    found: list[Columns] = []
    for step in steps:
        inputs = [found[one] for one in step.inputs]
        found.append(PIECES[step.piece].model(inputs, step.parameters))
    return found


def result_of(step: DrawnPiece) -> Result | None:
    """The piece of a step that has a sink."""
    piece = PIECES[step.piece]
    return piece if isinstance(piece, Result) else None


def regime_of(chosen: Chosen) -> Regime:
    """A regime by its name and arguments."""
    made: Regime = getattr(regimes, chosen[0])(**chosen[1])
    return made


# -- the flow ------------------------------------------------------------------------------------


class _Drawing:
    """The steps drawn so far, and what may follow each."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._steps: list[DrawnPiece] = []
        self._rows: list[int] = []
        self._timed: list[bool] = []
        self._one_way: list[bool] = []

    def steps(self) -> tuple[DrawnPiece, ...]:
        """Sources, pieces and results; nothing that leads nowhere."""
        chance = self._chance
        for number in range(1 if chance.random() < 0.6 else 2):
            self._add(DrawnPiece(SOURCE.name, (), {"number": number, **SOURCE.draw(chance)}))
        fan_out = None
        if chance.random() < 0.6:
            fan_out = self._some(EVENT_PIECES, lambda one: one.name == "keyBy", 0)
        for _ in range(chance.randint(0, STEPS_MAX)):
            self._some(EVENT_PIECES)
        events = len(self._steps)
        ends = set(range(events)) - {one for step in self._steps for one in step.inputs}
        for end in chance.sample(sorted(ends), min(len(ends), RESULTS_MAX - 1)):
            self._some(RESULTS, first=end, below=events)
        if fan_out is not None:
            self._some(RESULTS, first=fan_out, below=events)
        for _ in range(chance.randint(0, 1)):
            self._some(RESULTS, below=events)
        return reached(self._steps)

    def _some(
        self,
        pieces: Sequence[FlowPiece],
        fits: Callable[[FlowPiece], bool] = lambda _: True,
        first: int | None = None,
        below: int | None = None,
    ) -> int | None:
        """Add one of some pieces where it fits; its number, or None if there is too much by now."""
        chance, known = self._chance, below or len(self._rows)
        events = [n for n in range(known) if result_of(self._steps[n]) is None]
        start = chance.choice(events) if first is None else first
        inputs = [start, chance.choice(events)]
        choice = [
            one
            for one in pieces
            if fits(one)
            and (not one.needs_time or all(self._timed[n] for n in inputs[: one.inputs]))
            and (not one.needs_one_way or self._one_way[start])
            and (one.inputs < 2 or inputs[0] != inputs[1] or one.name != "union")
        ]
        piece = chance.choices(choice, [one.weight for one in choice])[0]
        return self._add(DrawnPiece(piece.name, tuple(inputs[: piece.inputs]), piece.draw(chance)))

    def _add(self, step: DrawnPiece) -> int | None:
        rows = len(next(iter(models([*self._steps, step])[-1].values())))
        if rows > ROWS_MAX:
            return None
        piece = PIECES[step.piece]
        self._steps.append(step)
        self._rows.append(rows)
        self._timed.append(piece.timed and all(self._timed[one] for one in step.inputs))
        self._one_way.append(piece.inputs < 2 and all(self._one_way[n] for n in step.inputs))
        return len(self._steps) - 1


def reached(steps: Sequence[DrawnPiece], without: int | None = None) -> tuple[DrawnPiece, ...]:
    """The steps that lead to a result, all but one of them perhaps; numbered anew."""
    used = [result_of(step) is not None and n != without for n, step in enumerate(steps)]
    for number in range(len(steps) - 1, -1, -1):
        if used[number]:
            for one in steps[number].inputs:
                used[one] = True
    new = {old: number for number, old in enumerate(n for n in range(len(steps)) if used[n])}
    kept = [steps[old] for old in new]
    return tuple(replace(one, inputs=tuple(new[n] for n in one.inputs)) for one in kept)


# -- regimes and faults --------------------------------------------------------------------------

STAGE_REGIMES: tuple[Chosen, ...] = (
    ("Causal", {}),
    ("Lazy", {"every": 4}),
    ("Lazy", {"every": 10, "selective": False}),
    ("Batch", {"every": 5}),
    ("Eager", {}),
    ("Ephemeral", {}),
    ("Ephemeral", {"logInputs": True}),
)
FLOW_REGIMES: tuple[Chosen, ...] = (*STAGE_REGIMES[:5], ("GlobalCheckpoint", {"every": 5}))


def _with_regimes(drawn: Drawn, chance: random.Random) -> Drawn:
    kind = chance.random()
    if kind < 0.5:
        return drawn
    if kind < 0.7:
        return replace(drawn, regime=chance.choice(FLOW_REGIMES))
    steps = [
        replace(step, regime=chance.choice(STAGE_REGIMES)) if chance.random() < 0.5 else step
        for step in drawn.steps
    ]
    default = chance.choice(FLOW_REGIMES[:5]) if chance.random() < 0.3 else None
    return replace(drawn, steps=tuple(steps), regime=default)


def _faults(chance: random.Random) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    for _ in range(chance.randint(2, 5)):
        kinds, weights = [HOST, HOSTS, QUICK, DRIVER, STOP], [4, 2, 3, 2, 1]
        if not faults or faults[-1].kind in (DRIVER, STOP):
            kinds, weights = kinds[:2] + kinds[3:], weights[:2] + weights[3:]
        kind = chance.choices(kinds, weights)[0]
        early = kind == DRIVER and chance.random() < 0.25
        longest = 0.5 if kind == QUICK else 0.8
        after_s = round(chance.uniform(0.05, longest), 3)
        many = 0 if kind in (DRIVER, STOP) else chance.randint(2, 3) if kind == HOSTS else 1
        picks = tuple(round(chance.random(), 3) for _ in range(many))
        faults.append(Fault(kind, after_s, picks, early))
    return tuple(faults)


def _chosen(found: Any) -> Chosen | None:
    return None if found is None else (found[0], found[1])
