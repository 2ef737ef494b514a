"""Regimes as a topology file writes them: ``"Eager"``, or ``{ type = "Lazy", every = 10 }``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from penstock.api import regimes
from penstock.api.regimes import Regime
from penstock.errors import SettingsError
from penstock.expressions.suggest import nearest

__all__ = ["regime_of"]


def regime_of(value: Any) -> Regime:
    """The regime that a text or a table names.

    >>> regime_of({"type": "Lazy", "every": 5})
    Lazy(every=5, selective=True)
    """
    table = {"type": value} if isinstance(value, str) else value
    if not isinstance(table, dict) or not isinstance(table.get("type"), str):
        raise SettingsError(
            f'a regime is its name, "Eager", or a table: {{ type = "Lazy", every = 10 }}; '
            f"got {value!r}"
        )
    known = [name for name in regimes.__all__ if name not in ("Regime", "Every")]
    name = table["type"]
    if name not in known:
        raise SettingsError(
            f"there is no regime {name!r}{nearest(name, known)} there are {', '.join(known)}"
        )
    kind: type[Regime] = getattr(regimes, name)
    takes = [one.name for one in fields(kind)]
    for argument in table:
        if argument != "type" and argument not in takes:
            listed = ", ".join(takes) or "none"
            raise SettingsError(
                f"{name} has no argument {argument!r}{nearest(argument, takes)} it has {listed}"
            )
    return kind(**{argument: given for argument, given in table.items() if argument != "type"})
