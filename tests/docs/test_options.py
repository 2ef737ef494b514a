"""The options of ``start``: one definition, the settings and docs/options.md follow it."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from penstock.api import start_options
from penstock.api.start_options import StartOptions
from penstock.engine.host.tuning import Tuning
from penstock.engine.settings import _CHOICES, RunSettings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"


def described() -> dict[str, str]:
    """The text under each option, as one line."""
    found: dict[str, str] = {}
    for definition in ast.parse(inspect.getsource(start_options)).body:
        if not isinstance(definition, ast.ClassDef):
            continue
        for option, text in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(option, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(option.target, ast.Name)
                assert isinstance(text.value, ast.Constant)
                found[option.target.id] = " ".join(str(text.value.value).split())
    return found


def table() -> list[str]:
    """The table that docs/options.md must hold."""
    settings, texts = RunSettings(), described()
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for option in fields(RunSettings):
        value = getattr(settings, option.name)
        default = "`Tuning()`" if isinstance(value, Tuning) else f"`{value!r}`"
        meaning = texts[option.name].replace("``", "`")
        choices = _CHOICES.get(option.name)
        if choices:
            meaning += f" One of {', '.join(f'`{choice!r}`' for choice in choices)}."
        lines.append(f"| `{option.name}` | {default} | {meaning} |")
    return lines


def test_every_option_is_typed_described_and_has_a_setting() -> None:
    names = {option.name for option in fields(RunSettings)}
    assert set(StartOptions.__annotations__) == names
    assert set(described()) == names


def test_the_choices_of_an_option_are_those_of_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_options, "Tuning", Tuning, raising=False)
    hints = get_type_hints(StartOptions)
    typed = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
    assert {name: set(choices) for name, choices in typed.items()} == {
        name: set(choices) for name, choices in _CHOICES.items()
    }


def test_the_page_of_options_is_up_to_date() -> None:
    wanted = "\n".join(table())
    assert wanted in PAGE.read_text(), f"docs/options.md must hold this table:\n{wanted}"
