"""Messages that a restarted causal node makes again, because a survivor knows how it made them.

Decides which messages stay fixed although their sender goes back: a message is fixed if φ of the
sender's span has its time, or if it is witnessed and everything it was made from is fixed (or still
in the sender's state). A receiver keeps a state only if all it handled on the edge is fixed. Being
fixed is monotone in the choices of all nodes, so the largest consistent choice stays unique.

A message is never made from itself, so needs have no cycles; metadata that say otherwise are
refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.rollback.constraints import Constraints
from penstock.core.rollback.metadata import Need, Witness
from penstock.core.rollback.spans import Moment
from penstock.errors import GraphError

__all__ = ["Witnessed"]


@dataclass(slots=True)
class _Item:
    """One message: fixed while its sender's choice is at least ``base``, or by its witness."""

    need: Need
    sender: int
    receiver: int
    base: int
    capped: int
    """The receiver's least offer that has the message: gone with the message."""
    witnessed: bool = False
    needs: list[tuple[int, int]] = field(default_factory=list)
    """(another message, the sender's least offer whose state has it)."""
    users: list[int] = field(default_factory=list)
    fixed: bool = True


class Witnessed:
    """The messages on edges whose deliveries are known exactly, and what they were made from."""

    def __init__(self, constraints: Constraints) -> None:
        self._constraints = constraints
        self._items: list[_Item] = []
        self._numbers: dict[Need, int] = {}
        self.sent_by: dict[int, list[int]] = {}
        for node, kept in enumerate(constraints.kept):
            for number in sorted(kept.delivered):
                if constraints.graph.edges[number].target != node:
                    raise GraphError(f"edge {number} does not lead to node {node}", node=node)
                times = kept.delivered[number] | kept.notified
                for time in sorted(times, key=lambda each: each.sort_key()):
                    item = self._items[self._number((number, time))]
                    item.capped = self._least_offer(node, time)
        if self._numbers:
            for kept in constraints.kept:
                for witness in kept.witnesses:
                    self._learn(witness)
            self._check_acyclic()

    def __bool__(self) -> bool:
        return bool(self._items)

    def lost(self, node: int, at: list[int]) -> list[tuple[int, int]]:
        """Return who must go below which offer because of the node's choice, each told once."""
        caps: list[tuple[int, int]] = []
        doubted = [number for number in self.sent_by.get(node, ()) if self._items[number].fixed]
        while doubted:
            item = self._items[doubted.pop()]
            if not item.fixed or self._is_fixed(item, at):
                continue
            item.fixed = False
            caps.append((item.receiver, item.capped))
            doubted += item.users
        return caps

    def _is_fixed(self, item: _Item, at: list[int]) -> bool:
        choice = at[item.sender]
        if choice >= item.base:
            return True
        return item.witnessed and all(
            choice >= held or self._items[number].fixed for number, held in item.needs
        )

    def _learn(self, witness: Witness) -> None:
        sender = self._constraints.graph.edges[witness.edge].source
        item = self._items[self._number((witness.edge, witness.time))]
        item.witnessed = True
        for edge, time in witness.needs:
            if self._constraints.graph.edges[edge].target != sender:
                raise GraphError(
                    f"a message on edge {witness.edge} cannot be made from edge {edge}, which "
                    f"does not lead to its sender {sender}",
                    node=sender,
                )
            needed = self._number((edge, time))
            item.needs.append((needed, self._least_offer(sender, time)))
            self._items[needed].users.append(self._numbers[item.need])

    def _number(self, need: Need) -> int:
        number = self._numbers.get(need)
        if number is None:
            number = self._numbers[need] = len(self._items)
            edge = self._constraints.graph.edges[need[0]]
            base = self._least_fixing(need)
            never = len(self._constraints.kept[edge.target].offers)
            self._items.append(_Item(need, edge.source, edge.target, base, never))
            self.sent_by.setdefault(edge.source, []).append(number)
        return number

    def _least_fixing(self, need: Need) -> int:
        number, time = need
        offers = self._constraints.kept[self._constraints.graph.edges[number].source].offers
        for index in range(len(offers)):
            if time in self._constraints.fixed(number, index):
                return index
        return len(offers)

    def _least_offer(self, node: int, time: Moment) -> int:
        offers = self._constraints.kept[node].offers
        for index, offer in enumerate(offers):
            if time in offer.span:
                return index
        return len(offers)

    def _check_acyclic(self) -> None:
        waiting = [len(item.needs) for item in self._items]
        ready = [number for number, count in enumerate(waiting) if not count]
        for number in ready:
            for user in self._items[number].users:
                waiting[user] -= 1
                if not waiting[user]:
                    ready.append(user)
        if len(ready) < len(self._items):
            stuck = self._items[next(n for n, count in enumerate(waiting) if count)].need
            raise GraphError(
                f"the message of time {stuck[1]} on edge {stuck[0]} is witnessed to be made from "
                f"itself; witnesses must follow the order in which messages were made"
            )
