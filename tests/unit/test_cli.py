"""The command line, as far as it goes without Spark."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import penstock
from penstock import Flow
from penstock.cli import main
from penstock.cli.app import app
from penstock.cli.output import reporting_errors
from penstock.cli.run import load_flow, parse_settings
from penstock.errors import FunctionError, GraphError, HostLostError, PenstockError, SettingsError

FLOWS = """
import pyarrow as pa
from penstock import Flow

flow = Flow("ready")

def build():
    return Flow("built")

number = 7
"""


@pytest.fixture(autouse=True)
def undo_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("flows_of"):
            del sys.modules[name]


@pytest.fixture
def flows(tmp_path: Path) -> Path:
    path = tmp_path / "flows_of_mine.py"
    path.write_text(FLOWS)
    return path


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = list(commands(typer.main.get_command(app)))


def called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the command."""
    monkeypatch.setattr(sys, "argv", ["penstock", *words])
    with pytest.raises(SystemExit) as caught:  # noqa: PT012
        main()
        sys.exit(0)
    out, err = capsys.readouterr()
    code = caught.value.code
    return (0 if code is None else int(code)), out, err


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
    assert "--help" in result.output


def test_the_commands_are_there() -> None:
    assert {path[0] for path in COMMANDS if path} >= {
        "demo", "run", "explain", "bench", "plan", "version",
    }  # fmt: skip


def test_version_says_what_it_runs_on() -> None:
    result = CliRunner().invoke(app, ["version"])
    assert result.exit_code == 0
    assert f"penstock {penstock.__version__}" in result.output


def test_version_as_json_is_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(monkeypatch, capsys, "version", "--json")
    assert code == 0
    assert json.loads(out)["penstock"] == penstock.__version__
    assert set(json.loads(out)) >= {"penstock", "pyspark", "pyarrow", "python"}
    assert err == ""


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["version", "--nonsense"],
        ["demo", "nonsense"],
        ["demo", "ysb", "--seconds", "many"],
        ["demo", "ysb", "--seconds", "0"],
        ["demo", "ysb", "--hosts", "0"],
        ["run"],
        ["run", "a:b", "--seconds", "-1"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_status_2_and_a_message_on_standard_error(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(monkeypatch, capsys, *words)
    assert code == 2
    assert out == ""
    assert err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["flows"], "write it as MODULE:FLOW"),
        (["no_such_module_here:flow"], "cannot import no_such_module_here"),
        (["no/such/file.py:flow"], "there is no file"),
        (["{flows}:nothing"], "has no 'nothing'"),
        (["{flows}:number"], "is a int, not a penstock.Flow"),
        (["{flows}:flow", "--set", "nonsense"], "write it as key=value"),
        (["{flows}:flow", "--set", "nonsense=1"], "there is no option 'nonsense'"),
        (["{flows}:flow", "--set", "hosts=many"], "hosts must be a whole number"),
        (["{flows}:flow", "--set", "epochInterval=soon"], "cannot read the duration 'soon'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_run_cannot_use_is_refused_before_spark_starts(
    words: list[str],
    message: str,
    flows: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word.replace("{flows}", str(flows)) for word in words]
    code, out, err = called(monkeypatch, capsys, "run", *words)
    assert code == 2
    assert out == ""
    assert message in " ".join(err.split())


# -- settings --------------------------------------------------------------------------------------


def test_settings_are_values_not_texts() -> None:
    options, conf = parse_settings(
        ["hosts=3", "availableNow=true", "epochInterval=50 ms", "checkpointLocation=/data/a=b"]
    )
    assert options == {
        "hosts": 3,
        "availableNow": True,
        "epochInterval": "50 ms",
        "checkpointLocation": "/data/a=b",
    }
    assert conf == {}


def test_settings_of_spark_stay_texts() -> None:
    assert parse_settings(["spark.ui.port=4050"]) == ({}, {"spark.ui.port": "4050"})


@pytest.mark.parametrize("setting", ["hosts", "=3", ""])
def test_a_setting_without_a_key_or_a_value_is_refused(setting: str) -> None:
    with pytest.raises(SettingsError, match="key=value"):
        parse_settings([setting])


# -- loading ---------------------------------------------------------------------------------------


def test_a_flow_is_found_in_a_file(flows: Path) -> None:
    assert load_flow(f"{flows}:flow").name == "ready"


def test_a_function_that_makes_a_flow_is_called(flows: Path) -> None:
    assert load_flow(f"{flows}:build").name == "built"


def test_a_flow_is_found_in_a_module(flows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(flows.parent)
    found = load_flow("flows_of_mine:flow")
    assert isinstance(found, Flow)


def test_a_file_can_import_its_neighbours(flows: Path) -> None:
    (flows.parent / "flows_of_others.py").write_text("NAME = 'neighbour'\n")
    flows.write_text("from penstock import Flow\nimport flows_of_others as o\nf = Flow(o.NAME)\n")
    assert load_flow(f"{flows}:f").name == "neighbour"


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("import os\nflow = os.environ['NOT_SET_HERE']\n", "KeyError: 'NOT_SET_HERE'", "line 2"),
        ("flow = = 1\n", "SyntaxError", "line 1"),
        ("def flow():\n    raise ValueError('no luck')\n", "ValueError: no luck", "line 2"),
    ],
)
def test_a_module_that_raises_is_reported_by_its_own_lines(
    flows: Path,
    text: str,
    message: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flows.write_text(text)
    status, out, err = called(monkeypatch, capsys, "run", f"{flows}:flow", "--check")
    assert (status, out) == (2, "")
    assert message in err
    assert f'{flows}", {place}' in err
    assert "importlib" not in err
    assert "penstock/importing.py" not in err


def test_a_mistake_in_a_flow_is_reported_with_its_line(
    flows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flows.write_text(
        "import pyarrow as pa\nfrom penstock import Flow, functions as F\nflow = Flow()\n"
        "rows = flow.memory(pa.schema({'n': pa.int64()}))\nrows.filter(F.col('m') > 1)\n"
    )
    status, _, err = called(monkeypatch, capsys, "run", f"{flows}:flow", "--check")
    assert status == 2
    assert "no column 'm'" in err
    assert "line 5" in err


def test_a_flow_is_explained(
    flows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flows.write_text(
        "import pyarrow as pa\nfrom penstock import Flow, functions as F\nflow = Flow('small')\n"
        "rows = flow.memory(pa.schema({'n': pa.int64()}))\n"
        "rows.filter(F.col('n') > 1).memory(name='kept')\n"
    )
    picture = flows.parent / "flow.svg"
    status, out, _ = called(
        monkeypatch, capsys, "explain", f"{flows}:flow", "--picture", str(picture)
    )
    assert status == 0
    assert "Flow small" in out
    assert "(n > 1)" in out
    assert picture.read_text(encoding="utf-8").startswith("<svg")


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GraphError("no sink"), 2),
        (SettingsError("wrong"), 2),
        (FunctionError("raised", stage="s", node="s[0]", epoch=3, traceback="Traceback: x"), 1),
        (HostLostError("gone"), 1),
        (PenstockError("something"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_become_a_message_and_a_status(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, reporting_errors():
        raise error
    assert caught.value.code == status
    out, err = capsys.readouterr()
    assert out == ""
    if isinstance(error, PenstockError):
        assert error.condition in err
        assert error.message in err
        assert str(error.parameters.get("traceback", "")) in err


def test_a_message_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), reporting_errors():
        raise SettingsError("columns [a, b] and [/red]")
    assert "columns [a, b] and [/red]" in capsys.readouterr().err
