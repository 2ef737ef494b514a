"""The settings of the ``replicated`` regime and of the two that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from penstock.core.delivery.guarantees import Guarantee
from penstock.errors import SettingsError

__all__ = ["ReplicaSettings", "Sharing"]


class Sharing(Enum):
    """What replicas of a stage tell each other."""

    RECORDS = "records"
    """Ids, origins and levels: the rows stay at the origin."""
    MIRRORED = "mirrored"
    """The rows too: the origin need not keep them."""
    NOTHING = "nothing"
    """Nothing: a host that takes over asks for everything."""


@dataclass(frozen=True)
class ReplicaSettings:
    """How replicas protect what they hold.

    A parcel survives the loss of up to ``depth`` of the hosts that hold it or what it was made
    from.  What it restores is what is in flight: stages keep no state of their own under it.

    >>> ReplicaSettings().depth, ReplicaSettings(Guarantee.AT_MOST_ONCE).logs
    (1, False)
    """

    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    depth: int = 1
    mirrored: bool = False
    acknowledged: bool = False
    """Read on only when what was read last has come to the end."""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise SettingsError(
                f"depth={self.depth}: what is sent has to be kept for at least one stage",
                depth=self.depth,
            )
        if self.mirrored and self.acknowledged:
            raise SettingsError("choose one of mirrored and acknowledged: each is a way of its own")
        if self.mirrored and self.depth > 1:
            raise SettingsError("mirrored replicas keep rows themselves; leave depth at 1")

    @cached_property
    def logs(self) -> bool:
        """Whether there are tables at all."""
        return self.guarantee.work.logs

    @cached_property
    def dedup(self) -> bool:
        """Whether receivers know what they have had; who mirrors rows has to know which."""
        return self.guarantee.work.dedup or (self.mirrored and self.logs)

    @cached_property
    def sharing(self) -> Sharing:
        """What replicas tell each other: nothing that the guarantee does not need."""
        if self.mirrored and self.logs:
            return Sharing.MIRRORED
        return Sharing.RECORDS if self.dedup and not self.acknowledged else Sharing.NOTHING

    @cached_property
    def release(self) -> int:
        """The level from which an origin need not keep a parcel."""
        if self.acknowledged:
            return 254
        return 0 if self.mirrored else self.depth

    @cached_property
    def settle(self) -> int:
        """The level from which a replica is done with a parcel."""
        return max(1, self.release)
