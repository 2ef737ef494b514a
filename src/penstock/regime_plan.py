"""What a choice of regimes does to a plan: edges that are made durable, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.connectors.parquet import ParquetWrite
from penstock.connectors.persist import PersistSource, PersistWrite
from penstock.errors import SettingsError
from penstock.operators.base import Forward, SourceOperator
from penstock.operators.loop import Leave, TimeShift
from penstock.regimes import PAUSES, Ephemeral, Regime
from penstock.stage import Input, Stage, free_name

__all__ = ["check_regimes", "pause_of", "regime_of", "with_persisted"]


def regime_of(head: Stage, default: Regime) -> Regime:
    """The regime of the chain that a stage is the head of."""
    return head.regime or default


def pause_of(run: Sequence[Stage]) -> str:
    """The pause class of fused stages: that of the one that bears least, of those that say so."""
    said = [stage.pause for stage in run if stage.pause is not None]
    return max(said, key=PAUSES.index, default="normal")


def check_regimes(run: Sequence[Stage], regime: Regime) -> None:
    """Refuse a regime that would lose a stage's state."""
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
    kept: dict[tuple[Stage, int], Stage] = {}
    names = [stage.name for stage in stages]
    for stage in stages:
        stage.index = len(result)
        result.append(stage)
        for port in range(len(stage.outputs)):
            if (stage, port) in wanted:
                written, read = _pair(stage, port, len(result), names)
                names += [written.name, read.name]
                result += [written, read]
                kept[stage, port] = read
    for stage in stages:
        stage.inputs = tuple(
            Input(kept[source.stage, source.port], 0, source.exchange)
            if (source.stage, source.port) in kept and stage in wanted[source.stage, source.port]
            else source
            for source in stage.inputs
        )
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
) -> dict[tuple[Stage, int], set[Stage]]:
    """Per output that is to be made durable: who reads it."""
    found: dict[tuple[Stage, int], set[Stage]] = {}
    for reader in stages:
        for source in reader.inputs:
            if _durable(reader, source, heads, default):
                found.setdefault((source.stage, source.port), set()).add(reader)
    return found


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
    if origin.follows is not None:
        return False
    into_sink = reader.operator.sink or isinstance(reader.operator, ParquetWrite)
    head = heads[origin]
    makes = regime_of(head, default)
    if makes.persists and not isinstance(head.operator, SourceOperator) and not into_sink:
        return True
    takes = regime_of(heads[reader], default) if reader in heads else default
    return isinstance(takes, Ephemeral) and takes.logInputs and not into_sink
