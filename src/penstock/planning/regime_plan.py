"""What a choice of regimes does to a plan: edges that are made durable, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.api.regimes import PAUSES, Causal, Ephemeral, Regime, Replicated
from penstock.api.stage import Input, Stage, free_name
from penstock.connectors.parquet import ParquetWrite
from penstock.connectors.persist import PersistSource, PersistWrite
from penstock.errors import SettingsError
from penstock.operators.base import Forward, SourceOperator
from penstock.operators.loop import Leave, TimeShift
from penstock.planning.replica_regimes import check_replicated

__all__ = ["check_regimes", "pause_of", "regime_of", "with_persisted"]

_Kept = tuple[Stage, int, Regime | None]
"""An output that is made durable, and under which regime it is read."""


def regime_of(head: Stage, default: Regime) -> Regime:
    """The regime of the chain that a stage is the head of."""
    return head.regime or default


def pause_of(run: Sequence[Stage]) -> str:
    """The pause class of fused stages: that of the one that bears least, of those that say so."""
    said = [stage.pause for stage in run if stage.pause is not None]
    return max(said, key=PAUSES.index, default="normal")


def check_regimes(run: Sequence[Stage], regime: Regime) -> None:
    """Refuse a regime that would lose a stage's state."""
    if isinstance(regime, Replicated):
        check_replicated(run)
    if isinstance(run[0].operator, SourceOperator):
        return
    for stage in run:
        if stage.operator.asks and not regime.logged:
            raise SettingsError(
                f"stage {stage.name!r} asks for the time, random numbers or answers from outside, "
                f"which the regime {regime.name} could not repeat: leave it Causal(), or move what "
                "asks into a stage of its own",
                stage=stage.name,
            )
        loses = isinstance(regime, Ephemeral) and not regime.logInputs
        if loses and stage.operator.state not in ("none", "epoch"):
            raise SettingsError(
                f"stage {stage.name!r} keeps state from epoch to epoch, which the regime Ephemeral "
                "would lose: choose Lazy(), Causal() or Eager(), or Ephemeral(logInputs=True), "
                "which makes it again from everything that was ever delivered",
                stage=stage.name,
            )


def with_persisted(
    stages: Sequence[Stage], heads: Mapping[Stage, Stage], default: Regime
) -> list[Stage]:
    """The stages, with those edges made durable whose regimes ask for it."""
    wanted = _wanted(stages, heads, default)
    result: list[Stage] = []
    kept: dict[_Kept, Stage] = {}
    names = [stage.name for stage in stages]
    for stage in stages:
        stage.index = len(result)
        result.append(stage)
        for key in wanted:
            if key[0] is stage:
                written, read = _pair(stage, key[1], len(result), names)
                written.regime, read.regime = _other(stage.regime, default), key[2]
                names += [written.name, read.name]
                result += [written, read]
                kept[key] = read
    for stage in stages:
        inputs = list(stage.inputs)
        for key, readers in wanted.items():
            for number, source in enumerate(stage.inputs):
                if stage in readers and (source.stage, source.port) == key[:2]:
                    inputs[number] = Input(kept[key], 0, source.exchange)
        stage.inputs = tuple(inputs)
    return result


def _pair(stage: Stage, port: int, index: int, names: Sequence[str]) -> tuple[Stage, Stage]:
    schema = stage.outputs[port]
    suffix = "kept" if port == 0 else f"kept_{port}"
    name = free_name(f"{stage.name}_{suffix}", names)
    write = PersistWrite(free_name(f"{name}_log", names))
    written = replace(
        stage,
        index=index,
        name=write.name,
        operator=write,
        inputs=(Input(stage, port, Forward()),),
        outputs=(),
        shards=None,
        named=False,
        loop=None,
        regime=None,
    )
    read = replace(
        written,
        index=index + 1,
        name=name,
        operator=SourceOperator(PersistSource(write, schema)),
        inputs=(),
        outputs=(schema,),
        follows=written,
    )
    return written, read


def _wanted(
    stages: Sequence[Stage], heads: Mapping[Stage, Stage], default: Regime
) -> dict[_Kept, set[Stage]]:
    """Per output that is to be made durable: who reads it, those who are replicated apart."""
    found: dict[_Kept, set[Stage]] = {}
    for reader in stages:
        for source in reader.inputs:
            if _durable(reader, source, heads, default):
                key = (source.stage, source.port, _other(reader.regime, default))
                found.setdefault(key, set()).add(reader)
    return found


def _other(regime: Regime | None, default: Regime) -> Regime | None:
    """Of a log beside a stage: the stage's, where that is replicated, else the flow's."""
    if isinstance(regime, Replicated):
        return regime
    return Causal() if isinstance(default, Replicated) else None


def _durable(reader: Stage, source: Input, heads: Mapping[Stage, Stage], default: Regime) -> bool:
    if source.stage.loop is not None:
        return False  # inside a loop, or on the way out: only what has left is kept
    origin = source.stage
    if isinstance(origin.operator, Leave):
        while isinstance(origin.operator, TimeShift):
            origin = origin.inputs[0].stage
    elif isinstance(origin.operator, TimeShift):
        return False
    if reader in heads and heads.get(source.stage) is heads[reader]:
        return False
    head = heads[origin]
    makes = regime_of(head, default)
    takes = regime_of(heads[reader], default) if reader in heads else default
    if takes != makes and (isinstance(takes, Replicated) or isinstance(makes, Replicated)):
        return True
    if origin.follows is not None:
        return False
    into_sink = reader.operator.sink or isinstance(reader.operator, ParquetWrite)
    if makes.persists and not isinstance(head.operator, SourceOperator) and not into_sink:
        return True
    return isinstance(takes, Ephemeral) and takes.logInputs and not into_sink
