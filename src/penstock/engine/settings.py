"""The settings of a run, checked once, on the driver."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pyarrow import fs

from penstock.api.error_policies import POLICIES
from penstock.api.regimes import Regime, checked_regime
from penstock.api.stage import STOP
from penstock.core.control.assignment import Linger
from penstock.core.delivery.guarantees import Guarantee
from penstock.core.delivery.takeover import Takeover
from penstock.durations import Duration, duration_us
from penstock.engine.host.tuning import Tuning
from penstock.errors import SettingsError

__all__ = ["RunSettings"]


ACTIVE = "active"
"""One host stands by and keeps up with the states of all nodes."""
LINGER_US = 5_000
"""Shortest time for which rows gather at a source, unless a user wants another."""
FOLLOWED_US = 100_000
"""Shortest time between two saves of a node that an active standby follows."""

_CHOICES = {
    "progress": ("marks", "tracked"),
    "recovery": ("causal", "none", "purge"),
    "guarantee": tuple(guarantee.value for guarantee in Guarantee),
    "logs": ("references", "copies"),
    "onError": POLICIES,
    "takeover": tuple(takeover.value for takeover in Takeover),
}


@dataclass(frozen=True)
class RunSettings:
    """How a flow runs; :class:`penstock.api.start_options.StartOptions` explains each option."""

    hosts: int | None = None
    parallelism: int | None = None
    checkpointLocation: str | os.PathLike[str] | fs.FileSystem | None = None
    availableNow: bool = False
    epochInterval: Duration = "100 ms"
    drainTimeout: Duration = "1500 ms"
    hostTimeout: Duration = "60 seconds"
    pingInterval: Duration = "50 ms"
    pingTimeout: Duration = "150 ms"
    takeover: str = "least-loaded"
    reinstate: bool = True
    startTimeout: Duration = "60 seconds"
    lease: Duration = "4 seconds"
    windowBytes: int = 4 << 20
    rowsMax: int = 65_536
    linger: Duration | None = None
    progressInterval: Duration = "1 second"
    progress: str = "marks"
    recovery: str = "causal"
    onError: str = STOP
    regime: Regime | None = None
    guarantee: str = "exactly-once"
    checkpointInterval: Duration = "1 second"
    rollbackWindow: Duration = "0 seconds"
    dropState: Sequence[str] = ()
    acceptTargets: Sequence[str] = ()
    logs: str = "references"
    logBytes: int = 64 << 20
    standby: int | str = 0
    storeTimeout: Duration = "5 minutes"
    maxOverhead: float | None = None
    planInterval: Duration = "10 seconds"
    tuning: Tuning = field(default_factory=Tuning)

    @classmethod
    def checked(cls, options: dict[str, Any]) -> RunSettings:
        """Settings from keyword arguments; unknown options and invalid values are refused."""
        names = [option.name for option in fields(cls)]
        for name in options:
            if name not in names:
                raise SettingsError(
                    f"start: there is no option {name!r}; the options are {', '.join(names)}",
                    option=name,
                )
        settings = cls(**options)
        for name in ("hosts", "parallelism"):
            value = getattr(settings, name)
            if value is not None and not _is_positive(value):
                raise SettingsError(
                    f"start: {name} must be a whole number from 1 up, got {value!r}"
                )
        for name in ("windowBytes", "rowsMax", "logBytes"):
            value = getattr(settings, name)
            if not _is_positive(value):
                raise SettingsError(
                    f"start: {name} must be a whole number from 1 up, got {value!r}"
                )
        spares = settings.standby
        if spares != ACTIVE and (not isinstance(spares, int) or spares < 0):
            raise SettingsError(
                f"start: standby is a number from 0 up or {ACTIVE!r}, got {spares!r}"
            )
        budget = settings.maxOverhead
        if budget is not None and not (isinstance(budget, int | float) and 0 < budget < 1):
            raise SettingsError(
                f"start: maxOverhead is a share of time such as 0.05, got {budget!r}"
            )
        for name in ("availableNow", "reinstate"):
            value = getattr(settings, name)
            if not isinstance(value, bool):
                raise SettingsError(f"start: {name} is True or False, got {value!r}")
        for name, values in _CHOICES.items():
            if getattr(settings, name) not in values:
                wanted = " or ".join(map(repr, values))
                raise SettingsError(f"start: {name} is {wanted}, got {getattr(settings, name)!r}")
        if settings.regime is not None:
            checked_regime(settings.regime, "start", whole_flow=True)
            if settings.recovery != "causal":
                raise SettingsError(
                    f"start: with recovery={settings.recovery!r} a regime means nothing; leave one "
                    "of the two out"
                )
        if settings.us("epochInterval") < 1000:
            raise SettingsError("start: epochInterval must be at least 1 ms")
        for name in (
            "drainTimeout",
            "hostTimeout",
            "pingInterval",
            "pingTimeout",
            "startTimeout",
            "lease",
            "progressInterval",
            "checkpointInterval",
            "storeTimeout",
            "planInterval",
            "rollbackWindow",
        ):
            settings.us(name)
        if settings.linger is not None:
            settings.us("linger")
        interval_us = settings.us("pingInterval")
        if 0 < interval_us < 1000 or settings.us("pingTimeout") < 2 * interval_us:
            raise SettingsError(
                "start: pingInterval is 0 or at least 1 ms, and pingTimeout at least twice that; "
                f"got {settings.pingInterval!r} and {settings.pingTimeout!r}"
            )
        return settings

    @property
    def gathering(self) -> Linger:
        """How long rows gather at sources."""
        if self.linger is not None:
            return Linger(self.us("linger"), self.us("linger"))
        most_us = self.us("epochInterval") // 4
        return Linger(min(LINGER_US, most_us), most_us)

    @property
    def spares(self) -> int:
        """How many hosts are kept ready without nodes."""
        return 1 if isinstance(self.standby, str) else self.standby

    @property
    def followed_s(self) -> float | None:
        """How often nodes save their states for a host that follows them; None: none does."""
        if self.standby != ACTIVE:
            return None
        return max(self.us("epochInterval"), FOLLOWED_US) / 1_000_000

    @property
    def pause_every(self) -> int | None:
        """Epochs after which the whole flow waits for all checkpoints; None: it never does."""
        if self.regime is None or not self.regime.whole_flow:
            return None
        return self.regime.epochs(self.us("epochInterval"))

    @property
    def rollback_epochs(self) -> int:
        """Epochs that are kept for rollbacks by hand."""
        return self.us("rollbackWindow") // self.us("epochInterval")

    def us(self, name: str) -> int:
        """A duration in microseconds."""
        return duration_us(getattr(self, name), name)

    def s(self, name: str) -> float:
        """A duration in seconds."""
        return self.us(name) / 1_000_000


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
