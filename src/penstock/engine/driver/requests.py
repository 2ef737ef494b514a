"""What can be asked of a running flow from outside: its handle's methods, by name.

Each is registered with the flow's command channel
(:mod:`penstock.engine.driver.command_channel`).  One line in :func:`serve` makes another method of
the handle reachable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.engine.driver.command_channel import ControlServer
from penstock.engine.store.flow_store import FlowStore
from penstock.errors import SettingsError

if TYPE_CHECKING:
    from penstock.engine.driver.query import FlowQuery

__all__ = ["method", "serve"]

log = logging.getLogger(__name__)


def serve(query: FlowQuery, store: FlowStore | None) -> ControlServer | None:
    """Open a flow's control channel; a flow runs without one where sockets cannot be had."""
    try:
        server = ControlServer(query.name)
        server.register("status", lambda _: _status(query))
        server.register("nodes", method(query.nodes))
        server.register("recoveries", lambda _: query.recoveries)
        server.register("moves", lambda _: query.moves)
        server.register("kill", method(query.kill, "node"))
        drills = query._drills
        server.register("crash", method(drills.crash, "target"))
        server.register("freeze", method(drills.freeze, "target", "seconds"))
        server.register("unfreeze", method(drills.unfreeze, "target"))
        server.register("slow", method(drills.slow, "target", "delay"))
        server.register("sever", method(query.severConnections, "host"))
        server.register("spans", method(query.spans))
        server.register("preview", lambda asked: query.preview(*asked.get("nodes", ())))
        server.register("checkpoint", method(query.checkpoint))
        server.register("rollback", method(query.rollback, "to", "dryRun"))
        server.register("stop", method(query.stop))
        server.start()
        if store is not None:
            store.announce(server.driver)
    except (OSError, SettingsError) as error:
        log.warning("flow %s cannot be controlled from outside: %s", query.name, error)
        return None
    return server


def method(function: Callable[..., Any], *names: str) -> Callable[[dict[str, Any]], Any]:
    """A handler that calls ``function`` with the arguments called ``names`` and takes no others."""

    def handle(arguments: dict[str, Any]) -> Any:
        for name in arguments:
            if name not in names:
                known = ", ".join(names) or "none"
                raise SettingsError(f"there is no argument {name!r}; the arguments are {known}")
        missing = [name for name in names if name not in arguments]
        if missing:
            raise SettingsError(f"argument {missing[0]!r} is missing")
        return function(*(arguments[name] for name in names))

    return handle


def _status(query: FlowQuery) -> dict[str, Any]:
    progress = query.lastProgress
    return {
        "name": query.name,
        "id": query.id,
        "runId": query.runId,
        **query.status,
        "hosts": query.hosts,
        **query._drills.state(),
        "progress": None if progress is None else dict(progress),
    }
