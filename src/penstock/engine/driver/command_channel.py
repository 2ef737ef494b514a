"""The control channel: how commands reach a flow that another process runs.

The driver of every flow listens on a Unix socket that only its user may open.  A request is one
line of JSON, ``{"do": "kill", "with": {"node": "counts[0]"}}``; the answer is another,
``{"result": ...}`` or ``{"error": ...}``, and then the connection is closed.  What can be asked for
is registered by name: :meth:`ControlServer.register`.

The sockets are in a folder of the user's own under the temporary directory (paths of sockets must
be short, and not every mounted file system has them); ``driver.json`` in the flow's store says
which one it is.  So a driver is found by its store or by its process id: :func:`find_driver`.

Nothing here waits for ever: a peer that does not send its line is dropped, a caller gives up.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PeerError, PenstockError, SettingsError, TransientError
from penstock.expressions.suggest import nearest

__all__ = ["DRIVER_FILE", "ControlServer", "DriverAddress", "Handler", "call", "find_driver"]

log = logging.getLogger(__name__)

DRIVER_FILE = "driver.json"
LINE_BYTES = 1 << 20
TALK_S = 5.0
"""How long a peer may take to send its request, or to take its answer."""
CALLERS = 16
"""Number of requests that are worked on at once; others wait."""
PATH_BYTES = 60
"""A temporary directory with a longer name leaves no room for a socket's path."""

Handler = Callable[[dict[str, Any]], Any]
"""Takes the request's arguments, gives what JSON can carry; what it raises goes to the caller."""


@dataclass(frozen=True)
class DriverAddress:
    """Where a flow's driver listens."""

    pid: int
    host: str
    socket: str
    flow: str = ""

    def to_json(self) -> str:
        """What ``driver.json`` says."""
        return json.dumps(asdict(self))


class ControlServer:
    """Answers requests to one flow, until it is closed.

    >>> server = ControlServer("example")
    >>> server.register("add", lambda asked: asked["a"] + asked["b"])
    >>> server.start()
    >>> call(server.driver, "add", a=1, b=2)
    3
    >>> server.close()
    """

    def __init__(self, flow: str) -> None:
        self._handlers: dict[str, Handler] = {}
        self._listener: socket.socket | None = None
        self._callers = threading.BoundedSemaphore(CALLERS)
        path = runtime_folder() / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.sock"
        self.driver = DriverAddress(os.getpid(), socket.gethostname(), str(path), flow)

    def register(self, name: str, handler: Handler) -> None:
        """Let ``handler`` answer the requests of this name."""
        if name in self._handlers:
            raise SettingsError(f"control: {name!r} is registered already")
        self._handlers[name] = handler

    @property
    def names(self) -> list[str]:
        """What can be asked for."""
        return sorted(self._handlers)

    def start(self) -> None:
        """Listen."""
        path = Path(self.driver.socket)
        _sweep(path.parent)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(CALLERS)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close(self) -> None:
        """Listen no more; requests that are being answered are answered."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):  # wakes the thread that accepts
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            Path(self.driver.socket).unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        while self._listener is listener:
            if not self._callers.acquire(timeout=1.0):
                continue
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        try:
            with peer:
                peer.settimeout(TALK_S)
                answer = self._answer(_read_line(peer))
                peer.settimeout(TALK_S)
                peer.sendall(_line(answer))
        except (OSError, PeerError) as error:
            log.info("control: a request was not answered: %s", error)
        finally:
            self._callers.release()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return {"result": self._result(line)}
        except PenstockError as error:
            return {"error": error.to_dict()}
        except Exception as error:
            log.exception("control: a request failed")
            return {"error": PenstockError(f"{type(error).__name__}: {error}").to_dict()}

    def _result(self, line: bytes) -> Any:
        try:
            request = json.loads(line)
            name, arguments = request["do"], request.get("with", {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PeerError(f"control: a request that cannot be read: {error!r}") from error
        if not isinstance(arguments, dict):
            raise PeerError('control: "with" is an object of named arguments')
        handler = self._handlers.get(name)
        if handler is None:
            raise SettingsError(
                f"control: there is no {name!r}{nearest(str(name), self.names)} there are "
                f"{', '.join(self.names)}"
            )
        return handler(arguments)


def call(driver: DriverAddress, name: str, timeout_s: float = 15.0, **arguments: Any) -> Any:
    """Ask a flow's driver for something; the result, or the error that it raised."""
    if driver.host != socket.gethostname():
        raise SettingsError(
            f"the flow's driver is process {driver.pid} on {driver.host}, and can be reached only "
            "there: run this command on that machine"
        )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(timeout_s)
            peer.connect(driver.socket)
            peer.sendall(_line({"do": name, "with": arguments}))
            answer: Mapping[str, Any] = json.loads(_read_line(peer))
    except TimeoutError as error:
        raise TransientError(
            f"the flow's driver (process {driver.pid}) did not answer within {timeout_s:g} s: is "
            "it frozen, or very busy?"
        ) from error
    except PermissionError as error:
        raise SettingsError(
            f"the flow's driver (process {driver.pid}) belongs to another user: {driver.socket}"
        ) from error
    except OSError as error:
        raise SettingsError(
            f"the flow is not running: its driver, process {driver.pid}, does not listen any more "
            f"({error.strerror or error})"
        ) from error
    except ValueError as error:
        raise PeerError(f"the flow's driver gave an answer that cannot be read: {error}") from error
    if "error" in answer:
        raise PenstockError.from_dict(answer["error"])
    return answer.get("result")


def find_driver(target: str | os.PathLike[str] | int) -> DriverAddress:
    """The driver of the flow with this store (``checkpointLocation``), or with this process id."""
    text = os.fspath(target) if not isinstance(target, int) else str(target)
    if text.isdigit() and not Path(text).exists():
        return _driver_of_process(int(text))
    path = Path(text)
    if not path.is_dir():
        raise SettingsError(
            f"there is no folder {text}; give the checkpointLocation of a running flow, or the "
            "process id of its driver"
        )
    try:
        return DriverAddress(**json.loads((path / DRIVER_FILE).read_text()))
    except FileNotFoundError:
        raise SettingsError(
            f"no flow runs with the store {text}: it has no {DRIVER_FILE}"
            + ("" if (path / "metadata.json").exists() else " (nor is it a flow's store)")
        ) from None
    except PermissionError as error:
        raise SettingsError(f"the flow in {text} belongs to another user") from error
    except (ValueError, TypeError) as error:
        raise SettingsError(f"{path / DRIVER_FILE} is damaged: {error}") from error


def _driver_of_process(pid: int) -> DriverAddress:
    found = sorted(runtime_folder().glob(f"{pid}-*.sock"))
    if not found:
        raise SettingsError(f"process {pid} drives no flow of yours on this machine")
    if len(found) > 1:
        raise SettingsError(
            f"process {pid} drives {len(found)} flows; give the checkpointLocation of the one you "
            "mean"
        )
    return DriverAddress(pid, socket.gethostname(), str(found[0]))


def runtime_folder() -> Path:
    """The folder of this user's sockets, made if need be; no other user may look into it."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > PATH_BYTES:
        base = "/tmp"
    folder = Path(base) / f"penstock-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise SettingsError(f"{folder} is not a folder of this user's own; remove it")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def _sweep(folder: Path) -> None:
    """Remove what drivers left behind that were killed."""
    for path in folder.glob("*.sock"):
        pid = path.name.partition("-")[0]
        if pid.isdigit() and not _is_alive(int(pid)):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps(body, default=str).encode() + b"\n"


def _read_line(peer: socket.socket) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        part = peer.recv(1 << 16)
        parts.append(part)
        size += len(part)
        if part.endswith(b"\n"):
            return b"".join(parts)
        if not part:
            raise PeerError("control: the connection ended in the middle of a line")
        if size > LINE_BYTES:
            raise PeerError(f"control: a line of more than {LINE_BYTES} bytes")
