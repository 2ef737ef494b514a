"""The control channel: requests from another process, and peers that behave badly."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.driver import command_channel as control
from penstock.engine.driver.command_channel import ControlServer, DriverAddress, call, find_driver
from penstock.errors import PenstockError, SettingsError, TransientError


@pytest.fixture
def server() -> Iterator[ControlServer]:
    made = ControlServer("test")
    made.register("echo", lambda asked: asked)
    made.start()
    yield made
    made.close()


def raw(server: ControlServer, sent: bytes) -> bytes:
    """What the server says to bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(10)
        peer.connect(server.driver.socket)
        peer.sendall(sent)
        return peer.recv(1 << 16)


def test_a_large_request_and_its_answer_come_whole(server: ControlServer) -> None:
    text = "x" * 300_000
    assert call(server.driver, "echo", text=text) == {"text": text}


def test_an_unknown_request_is_refused_with_the_nearest_name(server: ControlServer) -> None:
    with pytest.raises(SettingsError, match="no 'ecko'; did you mean 'echo'"):
        call(server.driver, "ecko")


@pytest.mark.parametrize("sent", [b"\n", b"7\n", b"{}\n", b'{"do": "echo", "with": 3}\n'])
def test_nonsense_is_answered_with_an_error(server: ControlServer, sent: bytes) -> None:
    assert json.loads(raw(server, sent))["error"]["type"] == "PeerError"
    assert call(server.driver, "echo", a=1) == {"a": 1}


def test_a_handler_that_raises_is_reported_to_the_caller(server: ControlServer) -> None:
    def fail(_asked: dict[str, Any]) -> Any:
        raise SettingsError("not like that", stage="s")

    server.register("fail", fail)
    server.register("crash", lambda asked: asked["missing"])
    with pytest.raises(SettingsError, match="not like that") as raised:
        call(server.driver, "fail")
    assert raised.value.parameters == {"stage": "s"}
    with pytest.raises(PenstockError, match="KeyError: 'missing'"):
        call(server.driver, "crash")


def test_a_peer_that_sends_nothing_is_dropped(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "TALK_S", 0.05)
    assert raw(server, b"") == b""


def test_callers_beyond_the_limit_wait_for_their_turn(server: ControlServer) -> None:
    release, held = threading.Event(), threading.Semaphore(0)

    def hold(_asked: dict[str, Any]) -> bool:
        held.release()
        return release.wait(20)

    server.register("hold", hold)
    holders = [
        threading.Thread(target=call, args=(server.driver, "hold")) for _ in range(control.CALLERS)
    ]
    for holder in holders:
        holder.start()
    try:
        for _ in holders:
            assert held.acquire(timeout=10)
        with pytest.raises(TransientError, match="did not answer"):
            call(server.driver, "echo", timeout_s=0.1)
    finally:
        release.set()
        for holder in holders:
            holder.join(20)
    assert call(server.driver, "echo") == {}


def test_a_caller_gives_up(server: ControlServer) -> None:
    release = threading.Event()
    server.register("hold", lambda _: release.wait(20))
    try:
        with pytest.raises(TransientError, match=r"did not answer within 0\.05 s"):
            call(server.driver, "hold", timeout_s=0.05)
    finally:
        release.set()


def test_only_the_user_may_open_the_socket(server: ControlServer) -> None:
    path = Path(server.driver.socket)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_killed_drivers_left_behind_is_swept_away(server: ControlServer) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(20)
    left = control.runtime_folder() / f"{ended.pid}-0.sock"
    left.touch()
    other = ControlServer("other")
    other.start()
    other.close()
    assert not left.exists()
    assert Path(server.driver.socket).exists()


def test_a_temporary_directory_with_a_long_name_is_avoided(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 20)))
    assert control.runtime_folder() == Path(f"/tmp/penstock-{os.getuid()}")


def test_a_driver_on_another_machine_is_named() -> None:
    with pytest.raises(SettingsError, match="process 7 on elsewhere"):
        call(DriverAddress(7, "elsewhere", "/none"), "status")


def test_targets_that_are_no_flow_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no folder"):
        find_driver(tmp_path / "none")
    with pytest.raises(SettingsError, match="nor is it a flow's store"):
        find_driver(tmp_path)
    (tmp_path / control.DRIVER_FILE).write_text("{")
    with pytest.raises(SettingsError, match="is damaged"):
        find_driver(tmp_path)
