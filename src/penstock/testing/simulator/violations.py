"""What a simulated run reports when an invariant does not hold."""

from __future__ import annotations

__all__ = ["Violation"]


class Violation(Exception):  # noqa: N818 - what is found, not what went wrong here
    """An invariant does not hold."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
