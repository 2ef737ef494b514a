"""Drills on a running flow: processes are killed, frozen and slowed down on purpose.

What is frozen is a process, with all nodes in it, by a signal; so it must be on the driver's
machine.  What is slowed down is a node: it waits a while after each batch, and its neighbours in
the same process do not.  When the flow ends all hosts are woken up again.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.core.control.roster import DRIVER
from penstock.durations import Duration, duration_us
from penstock.errors import SettingsError, TransientError
from penstock.expressions.suggest import nearest

if TYPE_CHECKING:
    from penstock.engine.driver.controller import Controller
    from penstock.engine.driver.query import FlowQuery

__all__ = ["Drills", "nodes_named"]

Target = int | str


def nodes_named(query: FlowQuery, target: Target, what: str) -> list[dict[str, Any]]:
    """The nodes that a number, a node's name, a stage's name or ``host:N`` means."""
    known = query.nodes()
    if isinstance(target, int):
        found = [one for one in known if one["node"] == target]
    elif target.startswith("host:"):
        found = [one for one in known if str(one["host"]) == target.removeprefix("host:")]
    else:
        numbers = {
            number
            for chain in query._controller.plan.chains
            for stage in chain.stages
            for number in chain.nodes
            if target in (stage.name, f"{stage.name}[{number - chain.first_node}]")
        }
        found = [one for one in known if one["node"] in numbers or one["name"] == target]
    if not found:
        names = [one["name"] for one in known]
        close = nearest(str(target), names)
        raise SettingsError(
            f"{what}: there is no node, stage or host {target!r}{close} the nodes are "
            f"{', '.join(names)}"
        )
    return found


class Drills:
    """What is frozen and slow at the moment; used from any thread."""

    def __init__(self, query: FlowQuery) -> None:
        self._query = query
        self._lock = threading.Lock()
        self._frozen: dict[int, int] = {}
        """Hosts and their processes."""
        self._frozen_for: dict[int, Target] = {}
        """What they were frozen for: when they wake up, it may run elsewhere."""
        self._over = False

    @property
    def _controller(self) -> Controller:
        return self._query._controller

    def crash(self, target: Target) -> list[dict[str, Any]]:
        """Kill the processes of some nodes (``kill -9``), also frozen ones."""
        killed: dict[int, dict[str, Any]] = {}
        for one in nodes_named(self._query, target, "crash"):
            if one["host"] == DRIVER:
                raise SettingsError(f"crash: node {one['name']} runs in the driver's own process")
            killed.setdefault(one["host"], {"host": one["host"], "pid": one["pid"], "nodes": []})
            killed[one["host"]]["nodes"].append(one["name"])
        for host in killed:
            with self._lock:
                frozen = self._frozen.pop(host, None)
            if frozen is None:
                self._controller.links.kill(host)
            else:
                self._signal(host, frozen, signal.SIGKILL)
        return list(killed.values())

    def freeze(self, target: Target, seconds: float | None = None) -> list[dict[str, Any]]:
        """Stop the processes of some nodes; they go on when told, or after a time."""
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise SettingsError(f"freeze: seconds are a number above 0, got {seconds!r}")
        processes = self._processes(target, "freeze")
        with self._lock:
            if self._over:
                raise TransientError("freeze: the flow is ending")
            for host, pid in processes.items():
                self._signal(host, pid, signal.SIGSTOP)
                self._frozen[host] = pid
                self._frozen_for[host] = target
        if seconds is not None:
            timer = threading.Timer(seconds, self._wake, (list(processes),))
            timer.daemon = True
            timer.start()
        return _told(processes)

    def unfreeze(self, target: Target | None = None) -> list[dict[str, Any]]:
        """Let processes go on; without a target all that are frozen."""
        with self._lock:
            frozen = dict(self._frozen)
        if target is not None:
            hosts = {one["host"] for one in nodes_named(self._query, target, "unfreeze")}
            hosts |= {host for host, other in self._frozen_for.items() if other == target}
            frozen = {host: pid for host, pid in frozen.items() if host in hosts}
            if not frozen:
                raise SettingsError(f"unfreeze: {target!r} is not frozen")
        self._wake(list(frozen))
        return _told(frozen)

    def slow(self, target: Target, delay: Duration) -> list[dict[str, Any]]:
        """Let some nodes wait after each batch; a delay of 0 ends it."""
        us = duration_us(delay, "slow")
        if us < 0:
            raise SettingsError(f"slow: a delay is not negative, got {delay!r}")
        nodes = nodes_named(self._query, target, "slow")
        self._controller.links.slow_down({one["node"]: us for one in nodes})
        return [{"node": one["node"], "name": one["name"], "delay_ms": us / 1000} for one in nodes]

    def state(self) -> dict[str, Any]:
        """What a drill has done that still lasts."""
        names = {one["node"]: one["name"] for one in self._query.nodes()}
        with self._lock:
            frozen = dict(self._frozen)
        delays = self._controller.links.delays_us
        return {
            "frozen": _told(frozen),
            "slow": {names[node]: us / 1000 for node, us in delays.items() if node in names},
        }

    def close(self) -> None:
        """Wake all hosts up: the flow ends, and they have to hear it."""
        with self._lock:
            self._over = True
        self._wake(list(self._frozen))

    def _wake(self, hosts: list[int]) -> None:
        with self._lock:
            for host in hosts:
                pid = self._frozen.pop(host, None)
                if pid is not None:
                    self._signal(host, pid, signal.SIGCONT)

    def _signal(self, host: int, pid: int, number: signal.Signals) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            if number is signal.SIGSTOP:
                raise TransientError(f"host {host} (process {pid}) is gone", host=host) from None
        except PermissionError:
            raise SettingsError(f"host {host}: process {pid} is another user's") from None

    def _processes(self, target: Target, what: str) -> dict[int, int]:
        """The processes that run some nodes, which must be here and not this one."""
        here = urlsplit(self._controller.links.address).hostname
        found: dict[int, int] = {}
        for one in nodes_named(self._query, target, what):
            if one["host"] == DRIVER:
                raise SettingsError(f"{what}: node {one['name']} runs in the driver's own process")
            info = self._controller.hosts.get(one["host"])
            if info is None or not info.address:
                raise TransientError(f"{what}: host {one['host']} is not up yet; try again")
            if info.pid is None:
                raise SettingsError(f"{what}: host {one['host']} is a thread of the driver's")
            if urlsplit(info.address).hostname != here:
                raise SettingsError(
                    f"{what}: host {one['host']} is on another machine ({info.address}); signals "
                    "do not get there. Crash it, or slow its nodes down"
                )
            found[info.number] = info.pid
        return found


def _told(processes: dict[int, int]) -> list[dict[str, Any]]:
    return [{"host": host, "pid": pid} for host, pid in processes.items()]
