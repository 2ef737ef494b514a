"""Progress of a loop at both ends: counts to the driver, frontiers to the hosts."""

from penstock.core.control.host_orders import ClosedEpoch, MoveFrontier
from penstock.core.control.host_progress import NOTHING_LEFT, HostProgress
from penstock.core.control.host_reports import GateClosing, ProgressMade
from penstock.core.control.loop_progress import LoopProgress, gate_counts
from penstock.core.graph import GraphBuilder, LogicalGraph
from penstock.core.node.tracking import NodeCounts, NodeTracking
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time

UNIT = 3
LINK = 9
"""The link round the loop."""


def body() -> LogicalGraph:
    builder = GraphBuilder()
    loop, stage = builder.loop("loop"), builder.stage("body", "loop")
    gate, way_in = builder.input("gate"), builder.ingress("enter", loop)
    again = builder.feedback("again", loop)
    builder.connect(gate, way_in)
    builder.connect(way_in, stage)
    builder.connect(stage, again)
    builder.connect(again, stage, "round")
    return builder.build()


GRAPH = body()
GATE = GRAPH.place("gate")


def tracking() -> NodeTracking:
    links = {LINK: GRAPH.place("round")}
    return NodeTracking(GRAPH.place("body"), links, GATE, 1, UNIT)


class Node:
    """A node of the loop on a host of its own."""

    def __init__(self, number: int, driver: LoopProgress) -> None:
        welcome = driver.welcome()
        self.number = number
        held = gate_counts({number: GATE}, welcome.epoch + 1)
        self.host = HostProgress(UNIT, GRAPH, welcome, held)
        self.counts = NodeCounts(tracking(), welcome.epoch + 1)

    @property
    def least_open(self) -> int:
        return self.host.least_open(tracking())

    def close(self, epoch: int, watermark_us: int | None = None) -> ProgressMade | None:
        self.counts.closed(epoch)
        self.host.gate_closed(GateClosing(self.number, epoch, watermark_us, 0))
        return self.step()

    def step(self) -> ProgressMade | None:
        return self.host.record(self.counts.take())


def driver_of(*nodes: int) -> LoopProgress:
    return LoopProgress(UNIT, GRAPH, dict.fromkeys(nodes, GATE), resume=-1)


def tell(moved: list[MoveFrontier], *nodes: Node) -> None:
    for one in moved:
        for node in nodes:
            node.host.receive(one)


def heard(driver: LoopProgress, node: Node, made: ProgressMade | None) -> list[MoveFrontier]:
    return [] if made is None else driver.receive(node.number, made)


def test_an_epoch_is_open_until_every_gate_has_closed_it() -> None:
    driver = driver_of(1, 2)
    one, two = Node(1, driver), Node(2, driver)
    assert heard(driver, one, one.close(0, 10)) == []
    moved = heard(driver, two, two.close(0, 7))
    assert [closed for one in moved for closed in one.closed] == [ClosedEpoch(0, 7, 0)]
    assert one.least_open == 0  # nothing was told yet
    tell(moved, one, two)
    assert (one.least_open, two.least_open) == (1, 1)


def test_rows_that_go_round_hold_their_epoch_open() -> None:
    driver = driver_of(1, 2)
    one, two = Node(1, driver), Node(2, driver)
    one.counts.sent(LINK, Time(0, (1,)))
    tell(heard(driver, one, one.close(0)), one, two)
    tell(heard(driver, two, two.close(0)), one, two)
    assert one.least_open == 0
    two.counts.handled(LINK, Time(0, (1,)))
    tell(heard(driver, two, two.step()), one, two)
    assert (one.least_open, two.least_open) == (1, 1)


def test_what_cancels_out_on_one_host_is_never_sent() -> None:
    driver = driver_of(1)
    node = Node(1, driver)
    node.counts.sent(LINK, Time(0, (1,)))
    assert node.step() is None
    node.counts.handled(LINK, Time(0, (1,)))
    assert node.step() is None
    made = node.close(0)
    assert made is not None
    assert made.deltas == ((GATE, Time(1), 1), (GATE, Time(0), -1))


def test_the_end_of_all_gates_leaves_nothing_open() -> None:
    driver = driver_of(1)
    node = Node(1, driver)
    tell(heard(driver, node, node.close(EPOCH_END)), node)
    assert node.least_open == NOTHING_LEFT


def test_a_restart_forgets_what_a_lost_host_had_counted() -> None:
    driver = driver_of(1, 2)
    one, two = Node(1, driver), Node(2, driver)
    two.counts.sent(LINK, Time(0, (1,)))
    heard(driver, two, two.close(0))  # and two is lost, with its rows
    heard(driver, one, one.close(0))
    driver.restart(-1)
    one, two = Node(1, driver), Node(2, driver)
    tell(heard(driver, one, one.close(0)), one, two)
    tell(heard(driver, two, two.close(0)), one, two)
    assert (one.least_open, two.least_open) == (1, 1)


def test_both_ends_refuse_another_generation() -> None:
    driver = driver_of(1)
    old = Node(1, driver)
    late = old.close(0)
    driver.restart(-1)
    new = Node(1, driver)
    assert heard(driver, old, late) == []
    moved = heard(driver, new, new.close(0))
    assert not old.host.receive(moved[0]).counted
    assert new.host.receive(moved[0]).counted


def test_a_restarted_gate_counts_with_the_watermark_where_it_started() -> None:
    driver = driver_of(1, 2)
    driver.restart(4)
    one, two = Node(1, driver), Node(2, driver)
    one.host.gate_closed(GateClosing(1, 4, 20, 0))
    two.host.gate_closed(GateClosing(2, 4, 30, 0))
    heard(driver, one, one.close(9, 50))
    moved = heard(driver, two, two.close(6, 40))
    assert [tuple(closed) for one in moved for closed in one.closed] == [(6, 20, 0)]


def test_a_welcome_includes_what_was_broadcast_before() -> None:
    driver = driver_of(1)
    node = Node(1, driver)
    moved = heard(driver, node, node.close(0))
    late = Node(2, driver)
    assert late.least_open == 1
    assert late.host.receive(moved[0]).counted  # it changes nothing
    assert late.least_open == 1
