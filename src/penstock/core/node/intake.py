"""Which messages count: those of a sender's present incarnation, in order, each once."""

from __future__ import annotations

from penstock.core.node.messages import Message
from penstock.core.node.options import Wiring
from penstock.errors import PeerError

__all__ = ["Intake"]


class Intake:
    """Numbers and incarnations of a node's senders.

    ``addressed``: messages name the incarnation of the node that they are for, and no other takes
    them.
    """

    def __init__(self, wiring: Wiring, addressed: bool = False) -> None:
        self._node = wiring.node
        self._own = wiring.incarnation if addressed else None
        self.keys = tuple((link, one) for link, ids in wiring.inputs.items() for one in ids)
        """Links and senders."""
        self.incarnations = {one: wiring.incarnations.get(one, 0) for _, one in self.keys}
        """The incarnation of each sender that counts here."""
        self._received = dict.fromkeys(self.keys, 0)

    def accept(self, message: Message) -> bool:
        """Whether a message counts; a gap in the numbers is an error."""
        if self._own is not None and message.target_incarnation != self._own:
            return False
        key = (message.link, message.sender)
        known = self._received.get(key)
        if known is None:
            raise PeerError(
                f"node {self._node}: node {message.sender} does not send on link {message.link}"
            )
        if message.incarnation != self.incarnations[message.sender]:
            return False
        if message.sequence <= known:
            return False
        if message.sequence != known + 1:
            raise PeerError(
                f"node {self._node}: message {message.sequence} of node {message.sender} arrived "
                f"after {known}: something in between is missing"
            )
        self._received[key] = message.sequence
        return True

    def fence(self, sender: int, incarnation: int) -> None:
        """A sender has a new incarnation: refuse the old one, count anew."""
        self.incarnations[sender] = incarnation
        for key in self._received:
            if key[1] == sender:
                self._received[key] = 0
