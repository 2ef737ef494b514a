"""Lower bounds for trees: the dual's inner minimum over all anchor sets, in one sweep.

Decides bounds and which decisions they rule out; ``tree_exact`` and ``dag`` draw the conclusions.

Theory. Fix the multiplier t of ``dual``. A segment under the anchor r with members T costs
``fixed + 2t·√(replay·state)``, which is not a sum over T; but for every q > 0

    2·√(replay·state)  ≤  replay/q + state·q,   with equality at q = √(replay/state),

and the right-hand side is a sum. On a grid of q whose neighbours differ by a factor e^(2δ) the best
grid point is off by at most a factor cosh δ, so with the sum divided by cosh δ the least value over
the grid is a lower bound, good to second order. A pair (r, i) stands for "i is in the segment of
r"; what i then costs depends on nothing else, so one pass from the leaves (``inside``) gives the
bound and one from the roots (``outside``) what each decision costs at least. Pairs, grid points
and anchors whose bound exceeds a known plan are dropped and the grids shrink to what is left.

With ``synchronised=False`` every member has a frequency of its own, which bounds plans under
RSRFS (section 3.3): then the weight is a sum already and the grid has a single column.

For a DAG the forest keeps one input per operator. What a non-anchor certainly needs (its other
inputs, with their logs where they must be anchors) is charged, once per path, and the rest is not:
so every anchor set costs at least as much in the DAG as here. Decisions already made
(``may_anchor``, ``must_anchor``) make more of it certain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.plan.cost import bits
from penstock.core.plan.dual import Curve
from penstock.core.plan.topology import OperatorTopology

__all__ = ["Forest", "Rooted"]

Array = NDArray[np.float64]

_GRID = 48
_HUGE = 1e300


@dataclass(slots=True)
class Rooted:
    """The pairs under one anchor r: members in preorder, r first."""

    root: int
    nodes: list[int]
    up: list[int]  # position of the parent in ``nodes``
    cut: list[list[int]]  # children that cannot be in this segment
    replay: Array  # per node: failure rate times what its failure replays for η = 1
    fixed: Array
    state: Array
    q: Array  # the grid, without the two degenerate columns
    base: Array  # nodes x columns: the part independent of t
    slope: Array  # nodes x columns: the part that t multiplies
    inner: Array  # nodes x columns: least cost of the subtree, after `inside`
    outer: Array  # nodes x columns: least cost of the rest, after `outside`; empty if impossible


class Forest:
    """Pairs, grids and bounds for a topology in which ``parent`` says whose child each one is."""

    def __init__(
        self,
        topology: OperatorTopology,
        parent: Sequence[int | None],
        *,
        synchronised: bool = True,
        may_anchor: Sequence[bool] | None = None,
        must_anchor: Sequence[bool] | None = None,
    ) -> None:
        self.topology = topology
        self.synchronised = synchronised
        self.parent = parent
        n = len(topology)
        self.children: list[list[int]] = [[] for _ in range(n)]
        for i in topology.order:
            above = parent[i]
            if above is not None:
                self.children[above].append(i)
        self.roots = [i for i in topology.order if parent[i] is None]
        self.log = topology.log_cost
        self.may_anchor = list(may_anchor or [True] * n)
        self.must_anchor = list(must_anchor or [False] * n)
        for i in range(n):  # a log that costs nothing is always worth having
            if self.may_anchor[i] and (self.log[i] == 0.0 or not topology.parents[i]):
                self.must_anchor[i] = True
        self.sure = self._surely_needed()
        self.best_at = np.full(n, math.inf)  # least cost of subtree(i) with i an anchor
        self.rest_at = np.full(n, math.inf)  # least cost of everything else in that case
        self.rooted: dict[int, Rooted] = {}
        for r in topology.order:
            self.rooted[r] = self._pairs(r)

    # -- building ---------------------------------------------------------------------------------

    def _surely_needed(self) -> list[int]:
        """Per operator: what a failure of it needs for certain, if it is no anchor."""
        sure = [0] * len(self.topology)
        for i in self.topology.order:
            sure[i] = 1 << i
            for p in self.topology.parents[i]:
                sure[i] |= 1 << p if self.may_anchor[p] else sure[p]
        return sure

    def _pairs(self, r: int) -> Rooted:
        topology = self.topology
        cpu, state = topology.replay_cost, topology.state_cost
        nodes, up, cut = [r], [0], [[c for c in self.children[r] if self.must_anchor[c]]]
        needed, beside = [1 << r], [0]
        certain, restored = [self.log[r] + cpu[r]], [state[r]]
        replayed = list(certain)
        stack = [(c, 0) for c in reversed(self.children[r]) if not self.must_anchor[c]]
        while stack:
            i, above = stack.pop()
            extra = self.sure[i] & ~needed[above]
            replay, fixed = certain[above], restored[above]
            for k in bits(extra):
                replay += cpu[k] + (self.log[k] if self.must_anchor[k] else 0.0)
                fixed += state[k]
            at = len(nodes)
            nodes.append(i)
            up.append(above)
            needed.append(needed[above] | extra)
            beside.append(beside[above] | (extra & ~(1 << i)))
            certain.append(replay)
            replayed.append(replay + self._beyond(beside[at], needed[at]))
            restored.append(fixed)
            cut.append([c for c in self.children[i] if self.must_anchor[c]])
            stack.extend((c, at) for c in reversed(self.children[i]) if not self.must_anchor[c])
        rho = np.array([topology.failure_rate[i] for i in nodes])
        rooted = Rooted(
            root=r,
            nodes=nodes,
            up=up,
            cut=cut,
            replay=rho * np.array(replayed),
            fixed=rho * np.array(restored),
            state=np.array([state[i] for i in nodes]),
            q=np.empty(0),
            base=np.empty((0, 0)),
            slope=np.empty((0, 0)),
            inner=np.empty((0, 0)),
            outer=np.empty((0, 0)),
        )
        self._grid(rooted, None)
        return rooted

    def _beyond(self, beside: int, needed: int) -> float:
        """What the operators beside a path replay at least besides their own work.

        Each one reads its log if it is an anchor; if not, its inputs work, and so on upwards.
        """
        total = 0.0
        for k in bits(beside):
            if not self.must_anchor[k]:
                least, needed = self._feed(k, needed, 3)
                total += least
        return total

    def _feed(self, k: int, seen: int, levels: int) -> tuple[float, int]:
        log, cpu = self.log[k], self.topology.replay_cost
        total = 0.0
        for p in self.topology.parents[k]:
            if seen >> p & 1:
                continue
            seen |= 1 << p
            total += cpu[p]
            if self.must_anchor[p]:
                total += self.log[p]
            elif levels and (total < log or not self.may_anchor[k]):
                more, seen = self._feed(p, seen, levels - 1)
                total += more
        return (min(total, log) if self.may_anchor[k] else total), seen

    def _grid(self, rooted: Rooted, window: tuple[float, float] | None) -> None:
        """Lay the grid over the q that a segment can have, or over a window of them."""
        replay, state, fixed = rooted.replay, rooted.state, rooted.fixed[:, None]
        if not self.synchronised:
            rooted.q = np.ones(1)
            rooted.base, rooted.slope = fixed, 2.0 * np.sqrt(replay * state)[:, None]
            return
        low, high = window or _range(replay, state)
        if low <= 0.0:  # no segment here has both something to replay and something to store
            rooted.q = np.empty(0)
        elif high <= low * (1.0 + 1e-9):
            rooted.q = np.array([math.sqrt(low * high)])
        else:
            rooted.q = np.geomspace(low, high, _GRID)
        columns, slopes = [], []
        if rooted.q.size:
            step = math.log(rooted.q[-1] / rooted.q[0]) / max(1, rooted.q.size - 1)
            shrink = 1.0 / math.cosh(0.5 * step + 1e-9)
            columns.append(np.repeat(fixed, rooted.q.size, axis=1))
            slopes.append(shrink * (replay[:, None] / rooted.q + state[:, None] * rooted.q))
        for free in (state, replay):  # segments without state, or without anything to replay
            if free[0] == 0.0:
                columns.append(np.where(free == 0.0, rooted.fixed, math.inf)[:, None])
                slopes.append(np.zeros((len(rooted.nodes), 1)))
        rooted.base, rooted.slope = np.hstack(columns), np.hstack(slopes)

    # -- bounds -----------------------------------------------------------------------------------

    def inside(self, t: float) -> None:
        """The least cost of every subtree, for every pair and grid point, at multiplier t."""
        best = self.best_at
        square = t * t
        for r in reversed(self.topology.order):
            if not self.may_anchor[r]:
                best[r] = math.inf
                continue
            rooted = self.rooted[r]
            inner = rooted.base + t * rooted.slope
            nodes, up, cut = rooted.nodes, rooted.up, rooted.cut
            for at in range(len(nodes) - 1, -1, -1):
                for child in cut[at]:
                    inner[at] += best[child]
                if at:
                    inner[up[at]] += np.minimum(inner[at], best[nodes[at]])
            rooted.inner = inner
            best[r] = square * self.log[r] + inner[0].min()

    def curve(self, t: float, max_overhead: float) -> Curve:
        """The inner minimum at t, as the curve of the anchors that attain it."""
        self.inside(t)
        fixed = slope = log = 0.0
        anchors = 0
        stack = list(self.roots)
        while stack:
            r = stack.pop()
            anchors |= 1 << r
            rooted = self.rooted[r]
            inner = rooted.inner
            column = int(inner[0].argmin())
            log += self.log[r]
            member = [False] * len(rooted.nodes)
            for at, i in enumerate(rooted.nodes):
                if at and not member[rooted.up[at]]:
                    continue
                if at and self.best_at[i] < inner[at, column]:
                    stack.append(i)
                    continue
                member[at] = True
                fixed += rooted.base[at, column]
                slope += rooted.slope[at, column]
                stack.extend(rooted.cut[at])
        return Curve(float(fixed), 0.5 * float(slope), max_overhead - log, anchors)

    def outside(self, t: float) -> None:
        """The least cost of all the rest, for every pair, grid point and anchor; after `inside`."""
        best, rest = self.best_at, self.rest_at
        rest[:] = math.inf
        total = sum(best[r] for r in self.roots)
        for r in self.roots:
            rest[r] = total - best[r]
        for r in self.topology.order:
            rooted = self.rooted[r]
            inner = rooted.inner
            if not (self.may_anchor[r] and math.isfinite(rest[r]) and inner.size):
                rooted.outer = np.empty((0, 0))
                continue
            outer = np.empty_like(inner)
            for at, i in enumerate(rooted.nodes):
                if at:
                    above = rooted.up[at]
                    # Where both are infinite the column is ruled out by `inner` alone.
                    chosen = np.minimum(np.minimum(inner[at], best[i]), _HUGE)
                    outer[at] = outer[above] + inner[above] - chosen
                    rest[i] = min(rest[i], outer[at].min())
                else:
                    outer[0] = t * t * self.log[r] + rest[r]
                if rooted.cut[at]:
                    whole = (outer[at] + inner[at]).min()
                    for child in rooted.cut[at]:
                        if math.isfinite(best[child]):
                            rest[child] = min(rest[child], whole - best[child])
            rooted.outer = outer

    # -- conclusions ------------------------------------------------------------------------------

    def tighten(self, limit: float) -> None:
        """Drop what costs more than ``limit`` (a plan's value plus t²·X); after `outside`."""
        limit += 1e-12 * abs(limit)
        n = len(self.topology)
        for i in range(n):
            if self.best_at[i] + self.rest_at[i] > limit and self.parent[i] is not None:
                self.may_anchor[i] = False
        reachable = [False] * n
        for r, rooted in self.rooted.items():
            if self.may_anchor[r] and rooted.outer.size:
                self._keep(rooted, limit, reachable)
        for i in range(n):
            if not reachable[i]:
                self.must_anchor[i] = True

    def _keep(self, rooted: Rooted, limit: float, reachable: list[bool]) -> None:
        whole = rooted.inner + rooted.outer
        alive = whole.min(axis=1) <= limit
        position: dict[int, int] = {}
        nodes: list[int] = []
        up: list[int] = []
        cut: list[list[int]] = []
        rows: list[int] = []
        for at, i in enumerate(rooted.nodes):
            if at and rooted.up[at] not in position:
                continue
            if at and not alive[at]:
                cut[position[rooted.up[at]]].append(i)
                continue
            position[at] = len(nodes)
            nodes.append(i)
            up.append(position[rooted.up[at]] if at else 0)
            cut.append(list(rooted.cut[at]))
            rows.append(at)
            if at:
                reachable[i] = True
        rooted.nodes, rooted.up, rooted.cut = nodes, up, cut
        rooted.replay, rooted.fixed = rooted.replay[rows], rooted.fixed[rows]
        rooted.state = rooted.state[rows]
        live = np.flatnonzero(whole[0, : rooted.q.size] <= limit)
        window = None
        if live.size:
            low, high = _range(rooted.replay, rooted.state)
            low = max(low, float(rooted.q[max(0, live[0] - 1)]))
            high = min(high, float(rooted.q[min(rooted.q.size, live[-1] + 2) - 1]))
            window = (low, high) if low <= high else None
        self._grid(rooted, window)
        rooted.inner = rooted.outer = np.empty((0, 0))


def _range(replay: Array, state: Array) -> tuple[float, float]:
    """Bounds of √(Σreplay/Σstate) over all sets of rows in which both sums are positive."""
    if replay.min() > 0.0 and state.min() > 0.0:
        ratio = replay / state
        return math.sqrt(float(ratio.min())), math.sqrt(float(ratio.max()))
    if replay.max() == 0.0 or state.max() == 0.0:
        return 0.0, 0.0
    low = float(replay[replay > 0.0].min() / state.sum())
    high = float(replay.sum() / state[state > 0.0].min())
    return math.sqrt(low), math.sqrt(high)
