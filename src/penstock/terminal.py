"""The console on which commands and benchmarks report to people; results go to standard output."""

from __future__ import annotations

from rich.console import Console

__all__ = ["stderr"]

stderr = Console(stderr=True)
