"""The Lagrangian dual of the planning problem: a lower bound that is nearly always tight.

Decides a multiplier; knows no topologies. For anchors R let C be the sum of the fixed parts, S the
sum of the segments' weights and A the sum of the log costs. The closed form says that R recovers in
``C + S² / (X − A)``, and

    C + S² / (X − A)  =  max over t ≥ 0 of  C + 2·t·S − t²·(X − A).

The right-hand side is, for a fixed t, a *sum* over segments. So for every t the least such sum over
all R is a lower bound on every plan, and it can be found without looking at all R. The best t is
searched here by cutting planes: each answer of the oracle is a curve that lies above the dual.

Laws
  * Every value the oracle returns is a lower bound, so ``bound`` is one too.
  * If the curve returned at t peaks at t, that R is optimal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Curve", "DualResult", "maximise"]

_ROUNDS = 40
_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Curve:
    """``C + 2·t·S − t²·room`` for the anchors that attain the minimum at some t."""

    fixed: float
    weight: float
    room: float
    anchors: int

    def at(self, t: float) -> float:
        """The curve's value at t."""
        return self.fixed + t * (2.0 * self.weight - t * self.room)

    @property
    def peak(self) -> float:
        """Where the curve is highest; ``inf`` if it never stops rising."""
        if self.weight == 0.0:
            return 0.0
        return self.weight / self.room if self.room > 0.0 else math.inf


@dataclass(frozen=True, slots=True)
class DualResult:
    """The best bound, the multiplier that gave it, and the curves seen on the way."""

    bound: float
    t: float
    curves: tuple[Curve, ...]


def maximise(oracle: Callable[[float], Curve], t: float) -> DualResult:
    """Search the multiplier with the highest lower bound, from a first guess ``t``."""
    seen: list[Curve] = []
    best, best_t = -math.inf, t
    rising: Curve | None = None  # minimal somewhere left of the best t, and going up there
    falling: Curve | None = None
    low, high = 0.0, math.inf
    for _ in range(_ROUNDS):
        curve = oracle(t)
        seen.append(curve)
        value = curve.at(t)
        if value > best:
            best, best_t = value, t
        slope = curve.weight - t * curve.room
        if abs(slope) <= _TOLERANCE * (curve.weight + t * abs(curve.room)):
            break
        if slope > 0.0:
            rising, low = curve, t
        else:
            falling, high = curve, t
        t = _next(rising, falling, low, high)
        ceiling = min(c.at(t) for c in (rising, falling) if c is not None)
        if best >= ceiling - _TOLERANCE * abs(ceiling):
            break
    return DualResult(best, best_t, tuple(seen))


def _next(rising: Curve | None, falling: Curve | None, low: float, high: float) -> float:
    """Where the lower of the two curves is highest."""
    if rising is None:
        return falling.peak if falling is not None else low
    if falling is None:
        return rising.peak if math.isfinite(rising.peak) else 4.0 * low + 1e-300
    up, down = rising.peak, falling.peak
    if low < up < high and rising.at(up) <= falling.at(up):
        return up
    if low < down < high and falling.at(down) <= rising.at(down):
        return down
    return _crossing(rising, falling, low, high)


def _crossing(rising: Curve, falling: Curve, low: float, high: float) -> float:
    c = rising.fixed - falling.fixed
    b = rising.weight - falling.weight
    a = falling.room - rising.room  # difference is c + 2·b·t + a·t²
    roots: list[float] = []
    square = b * b - a * c
    if square >= 0.0:
        far = -(b + math.copysign(math.sqrt(square), b))
        roots = [far / a] if a != 0.0 else []
        roots += [c / far] if far != 0.0 else []
    inside = [root for root in roots if low < root < high]
    return inside[0] if inside else 0.5 * (low + high)
