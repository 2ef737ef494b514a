"""The places of keys and values in TOML: all of a document is found where it was written."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.topology.positions import Path, TextPosition, places

names = st.text(st.sampled_from("ab-_1. \"'\\#[]={}\té"), min_size=1, max_size=4)
scalars = st.one_of(
    st.integers(),
    st.booleans(),
    st.text(st.sampled_from("ab\"'\\#[]{},=\n\té"), max_size=8),
    st.sampled_from(["1979-05-27 07:32:00", "0x1f", "1_000", "-inf", "1e5"]).map(
        lambda raw: (raw,)
    ),
)
inline = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
tables = st.dictionaries(names, inline, max_size=3)
documents = st.fixed_dictionaries(
    {
        "top": tables,
        "tables": st.dictionaries(names, tables, max_size=3),
        "arrays": st.dictionaries(names, st.lists(tables, min_size=1, max_size=2), max_size=2),
    }
)


class Writer:
    """Writes TOML in many ways, and notes where it wrote what."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.text = ""
        self.keys: dict[Path, TextPosition] = {}
        self.values: dict[Path, TextPosition] = {}

    def here(self) -> TextPosition:
        before = self.text.replace("\r\n", "\n")
        return TextPosition(before.count("\n") + 1, len(before) - before.rfind("\n"))

    def pick(self, *choices: str) -> str:
        return str(self.draw(st.sampled_from(choices)))

    def key(self, name: str) -> None:
        plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        forms = [_basic(name)]
        if plain:
            forms.append(name)
        if "'" not in name and "\n" not in name:
            forms.append(f"'{name}'")
        self.text += self.pick(*forms)

    def pair(self, path: Path, value: Any) -> None:
        self.keys[path] = self.here()
        self.key(str(path[-1]))
        self.text += self.pick("=", " = ", "\t=  ")
        self.value(path, value)

    def value(self, path: Path, value: Any) -> None:
        self.values[path] = self.here()
        if isinstance(value, dict):
            self.text += "{" + self.pick("", " ")
            for number, (name, inner) in enumerate(value.items()):
                self.text += ", " if number else ""
                self.pair((*path, name), inner)
            self.text += self.pick("", " ") + "}"
        elif isinstance(value, list):
            self.text += "[" + self.pick("", "\n", " # [,\n\t")
            for number, inner in enumerate(value):
                self.value((*path, number), inner)
                self.text += self.pick(",", ", ", "\n,\n# ]\n", "\r\n  ,")
            self.text += self.pick("]", "\n]")
        elif isinstance(value, str):
            self.string(value)
        else:
            self.text += value[0] if isinstance(value, tuple) else str(value).lower()

    def string(self, value: str) -> None:
        forms = [_basic(value), '"""' + _basic(value)[1:-1] + '"""']
        if "'" not in value:
            forms.append(f"'''{value}'''")
            if "\n" not in value:
                forms.append(f"'{value}'")
        elif value.endswith("'") and "''" not in value:
            forms.append(f"'''{value}'''")  # the text ends in a quote of its own
        self.text += self.pick(*forms)

    def line(self) -> None:
        self.text += self.pick("\n", "\r\n", "  # a comment = [\n", "\n\n")

    def table(self, path: Path, rows: dict[str, Any]) -> None:
        for name, value in rows.items():
            self.text += self.pick("", "  ")
            self.pair((*path, name), value)
            self.line()

    def heading(self, path: Path, marks: str) -> None:
        self.keys[path] = self.here()
        self.text += marks
        for number, part in enumerate(part for part in path if isinstance(part, str)):
            self.text += self.pick(".", " . ") if number else ""
            self.key(part)
        self.text += "]" * len(marks)
        self.line()


def _basic(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
    return '"' + "".join(escapes.get(letter, letter) for letter in text) + '"'


@st.composite
def written(draw: Any) -> Writer:
    document = draw(documents)
    writer = Writer(draw)
    top = {f"t{name}": value for name, value in document["top"].items()}
    writer.table((), top)
    for name, rows in document["tables"].items():
        writer.heading(("u", name), "[")
        writer.table(("u", name), rows)
    for name, many in document["arrays"].items():
        for number, rows in enumerate(many):
            writer.heading(("v", name, number), "[[")
            writer.table(("v", name, number), rows)
    return writer


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from paths(inner, (*path, number))


@settings(max_examples=60, deadline=None)
@given(written())
def test_everything_is_found_where_it_was_written(writer: Writer) -> None:
    parsed = tomllib.loads(writer.text)
    found = places(writer.text)
    assert {path: found.keys[path] for path in writer.keys} == writer.keys
    assert found.values == writer.values
    for path in paths(parsed):
        assert path in found.keys or path in found.values


@pytest.mark.parametrize(
    ("text", "path", "place"),
    [
        ("a.b.c = 1", ("a", "b", "c"), TextPosition(1, 5)),
        ("a.b.c = 1", ("a", "b"), TextPosition(1, 3)),
        ("[a.b]\n[a]\nc = 1", ("a",), TextPosition(2, 1)),
        ("[[a]]\n[[a]]\n[a.b]\nc = 1", ("a", 1, "b", "c"), TextPosition(4, 1)),
        ("[[a]]\n[[a]]\n[[a.b]]\nc = 1", ("a", 1, "b", 0, "c"), TextPosition(4, 1)),
        ('x = """a\n"" "b""""\ny = 1', ("y",), TextPosition(3, 1)),
        ("x = '''a\n'''''\ny = 1", ("y",), TextPosition(3, 1)),
        ('x = """\\""""\ny = 1', ("y",), TextPosition(2, 1)),
    ],
)
def test_keys_in_odd_places(text: str, path: Path, place: TextPosition) -> None:
    tomllib.loads(text)
    assert places(text).keys[path] == place


def test_what_is_not_there_is_looked_for_around() -> None:
    found = places("\n[a]\nb = 1")
    assert found.of(("a", "b", "c")) == TextPosition(3, 1)
    assert found.of(("a", "x")) == TextPosition(2, 1)
    assert found.of(("x",)) == TextPosition(1, 1)
    assert found.of(("a", "b"), value=True) == TextPosition(3, 5)
