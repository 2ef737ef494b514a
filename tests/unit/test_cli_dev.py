"""penstock dev: a server is started once and ended by its process id, with a stand-in for Java."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import SettingsError
from penstock.testing.kafka_broker import kafka_jars

JAVA = """#!{python}
import pathlib, re, signal, socket, sys
settings = pathlib.Path(sys.argv[-1])
if "format" in sys.argv:
    (settings.parent / "data").mkdir()
    (settings.parent / "data" / "meta.properties").touch()
else:
    port = int(re.search(r"PLAINTEXT://127.0.0.1:(\\d+)", settings.read_text())[1])
    listening = socket.create_server(("127.0.0.1", port))
    signal.sigwait([signal.SIGTERM])
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a Java that only listens, and with a jar."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    (home / "bin" / "java").write_text(JAVA.format(python=sys.executable))
    (home / "bin" / "java").chmod(0o755)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "kafka_2.13-4.0.0.jar").touch()
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_KAFKA_JARS", str(tmp_path / "jars"))
    return tmp_path


def called(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["dev", *arguments, "--json"], catch_exceptions=False)
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_a_server_runs_from_up_to_down(machine: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = called("up", "kafka", "--port", str(port))
    assert started["address"] == f"127.0.0.1:{port}"
    assert called("up", "kafka") == started
    socket.create_connection(("127.0.0.1", port), 5).close()
    assert called("down", "kafka")["ended"] == started["pid"]
    assert called("down", "kafka")["ended"] is None


def test_a_process_that_took_the_number_is_left_alone(machine: Path) -> None:
    folder = machine / "cache" / "penstock" / "dev" / "kafka"
    folder.mkdir(parents=True)
    (folder / "pid").write_text(f"{os.getpid()} 127.0.0.1:1\n")
    assert called("down", "kafka")["ended"] is None


def test_what_is_missing_is_said(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KAFKA_JARS", str(machine))
    with pytest.raises(SettingsError, match=r"has no kafka_2.13-\*\.jar"):
        kafka_jars()
    monkeypatch.delenv("PENSTOCK_KAFKA_JARS")
    monkeypatch.setenv("PATH", str(machine))
    with pytest.raises(SettingsError, match="needs Maven .* apt-get install maven"):
        kafka_jars()
