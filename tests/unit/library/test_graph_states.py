"""Graph computations whose state is taken and given back in the middle of a loop."""

from functools import partial
from types import EllipsisType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.api.vertex import Place, Time, Vertex
from penstock.core.progress.notifications import Notification
from penstock.engine.host.chain_state import captured, given_back
from penstock.library.graphs import ConnectedComponents, ShortestPaths
from penstock.operators.user_vertex import UserVertex

FAMILIES: dict[str, Any] = {
    "components": (ConnectedComponents, (1, 2)),
    "paths": (partial(ShortestPaths, 0), (1,)),
}


class Loop:
    """One shard in a loop of its own: offers come round at once."""

    place = Place("graph", 0, 1)

    def __init__(self, factory: Any) -> None:
        self.operator = UserVertex(factory, (pa.schema({}), pa.schema({})))
        self.asked: dict[Notification, None] = {}
        self.out: list[tuple[Time, bytes]] = []
        self.vertex: Vertex = self.operator.vertex()
        self.vertex.open(self)

    def send(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if port:
            self.out.append((time, batch.serialize().to_pybytes()))
        else:
            self.vertex.onRecv(0, batch, time.advanced())

    def notify(self, time: Time, capability: Time | EllipsisType | None = ...) -> None:
        held = time if isinstance(capability, EllipsisType) else capability
        self.asked[Notification(time, held)] = None

    def watermark(self, time: Time) -> int | None:
        return None

    def count(self, name: str, value: int) -> None:
        return None

    def step(self, epoch: int) -> bool:
        """Deliver the least notification of the epochs up to one."""
        due = [one for one in self.asked if one.guarantee.epoch <= epoch]
        if due:
            wanted = min(due, key=lambda one: one.guarantee.sort_key())
            del self.asked[wanted]
            self.vertex.onNotify(wanted.guarantee)
        return bool(due)

    def restart(self) -> None:
        state = captured(self.operator, self.vertex, {}, self.asked)
        self.vertex = self.operator.vertex()
        self.vertex.open(self)
        given_back(state, self.vertex, Time(0, (0,)))
        assert tuple(self.asked) == state.asked


def edges(seed: int, ports: tuple[int, ...]) -> list[pa.RecordBatch]:
    generator = np.random.default_rng(seed)
    found = []
    for size in (5, 40, 3, 60):
        ends = generator.integers(0, 60, (2, size))
        columns = {"src": ends[0], "dst": ends[1]}
        if ports == (1,):
            columns["weight"] = generator.integers(1, 9, size).astype(np.float64)
        found.append(pa.record_batch(columns))
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(5))
def test_a_graph_goes_on_from_the_state_of_another(family: str, seed: int) -> None:
    factory, ports = FAMILIES[family]
    batches = edges(seed, ports)
    whole, broken = Loop(factory), Loop(factory)
    places = np.random.default_rng(seed)
    for loop in (whole, broken):
        for epoch, batch in enumerate(batches):
            for port in ports:
                loop.vertex.onRecv(port, batch, Time(epoch, (0,)))
            if epoch % 2 == 0:
                continue  # the next epoch waits for its turn
            if loop is broken:
                loop.restart()
            while loop.step(epoch):
                if loop is broken and places.random() < 0.4:
                    loop.restart()
    assert whole.out == broken.out
    assert whole.out
