"""The history of a flow's recoveries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["RecoveryEntry"]


@dataclass
class RecoveryEntry:
    """One recovery in a flow's history; times are wall clock in microseconds."""

    number: int
    lost: list[str]
    reason: str
    lost_us: int
    restarted: list[str] = field(default_factory=list)
    planned_us: int | None = None
    started_us: int | None = None
    opened_us: int | None = None
    recovered_us: int | None = None
    work: dict[str, dict[str, float]] = field(default_factory=dict)
    """Per restarted node: seconds to restore its state, to be sent what it needs again, and to
    complete again what it had completed before."""

    host: int | None = None
    """The host that was lost."""
    moved: bool = False
    """Whether the nodes moved to another host on purpose, and no host was lost."""
    refused: dict[str, int] = field(default_factory=dict)
    """What was refused of the lost host, which was not dead after all: messages, connections, and,
    by the store, writes of its nodes."""

    @property
    def work_s(self) -> float | None:
        """Restoring and replaying, summed over nodes; None: not all of them have caught up."""
        caught_up = [name for name, one in self.work.items() if "replay_s" in one]
        if not self.restarted or not set(caught_up) >= set(self.restarted):
            return None
        keys = ("restore_s", "resend_s", "replay_s")
        return sum(one.get(key, 0.0) for one in self.work.values() for key in keys)

    def to_dict(self) -> dict[str, Any]:
        """For people and for JSON."""
        return {
            **vars(self),
            "work": dict(self.work),
            "refused": dict(self.refused),
            "work_s": self.work_s,
        }
