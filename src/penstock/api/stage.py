"""Stages: the plain data that flows are made of, and how they are named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.core.delivery.guarantees import Guarantee
from penstock.errors import SettingsError
from penstock.operators.base import Exchange, Operator

if TYPE_CHECKING:
    from penstock.api.loops import Loop
    from penstock.api.regimes import Regime

__all__ = [
    "RESTART",
    "SKIP",
    "STOP",
    "Input",
    "Stage",
    "checked_name",
    "columns_of",
    "free_name",
    "readers_of",
    "where_is",
]

STOP, RESTART, SKIP = "stop", "restart", "skip"
"""What happens when a stage raises."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(eq=False)
class Input:
    """One input of a stage: an output port of another, and how rows find their shard."""

    stage: Stage
    port: int
    exchange: Exchange


@dataclass(eq=False)
class Stage:
    """A logical operator in its place in the flow."""

    index: int
    name: str
    operator: Operator
    inputs: tuple[Input, ...]
    outputs: tuple[pa.Schema, ...]
    shards: int | None = None
    named: bool = field(default=False)
    """Whether the user gave the name."""
    loop: Loop | None = None
    """The loop whose times its outputs carry."""
    follows: Stage | None = None
    """The stage whose epochs a source gives on."""
    regime: Regime | None = None
    """How its nodes survive; None: as the flow says."""
    pause: str | None = None
    """Its pause class, if the user gave one."""
    part: str | None = None
    """The part of the flow that it belongs to, if that has parts."""
    guarantee: Guarantee | None = None
    """What the user wants promised of its rows; None: what the stages behind it need."""

    on_error: str | None = None
    """What happens when it raises; None: as the flow says."""

    def sink_of(self, stage: Stage) -> bool:
        """Whether this is the second half of a sink whose first half is ``stage``."""
        return self.operator.sink and self.name == f"{stage.name}_commit"


def free_name(wanted: str, taken: Sequence[str]) -> str:
    """``wanted``, with a number if that name is taken."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


def readers_of(stages: Sequence[Stage]) -> dict[tuple[Stage, int], list[Stage]]:
    """Per output port of a stage: who reads it."""
    readers: dict[tuple[Stage, int], list[Stage]] = {}
    for stage in stages:
        for source in stage.inputs:
            readers.setdefault((source.stage, source.port), []).append(stage)
    return readers


def where_is(loop: Loop | None) -> str:
    """In words, where a stream is."""
    return "outside every loop" if loop is None else f"in loop {loop.name!r}"


def columns_of(schema: pa.Schema) -> str:
    """Names and types, for messages."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def checked_name(name: str, what: str) -> str:
    """A name that people, files and metrics can all use."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise SettingsError(
            f"{what} name {name!r}: use ASCII letters, digits and underscores, not starting with "
            "a digit"
        )
    return name
