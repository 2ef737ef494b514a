"""Inputs: how a source opens and closes epochs, closes for good, and is idle.

Decides which counts an input holds. Follows the Naiad paper, section 2.3: an open input holds one
event at its current epoch; closing the epoch adds the next one and takes this one away; closing for
good takes it away. The paper leaves idle inputs open, and they hold all stages back.

Idle inputs. An input that has nothing to say closes its epoch and *lends* what it holds to the
controller (:class:`IdleInputs`), which moves it along with the inputs that are busy: it is never
the one that others wait for. If all are idle, what they lent stays at the latest of them, so
that everything before is complete and the flow does not end. An input that wakes up gets its loan
back, at the epoch where it is now. Only the controller can do this without a race: its counts are
the ones that all views follow.
"""

from __future__ import annotations

from enum import Enum

from penstock.core.progress.deltas import Deltas
from penstock.core.progress.tracker import Tracker
from penstock.core.time import Time
from penstock.errors import InvariantError, PeerError

__all__ = ["EpochInput", "IdleInputs", "InputState"]


class InputState(Enum):
    """Where an input is in its life."""

    OPEN = "open"
    IDLE = "idle"
    CLOSED = "closed"


class EpochInput:
    """One shard of an input stage: its current epoch and what it holds in the counts.

    Laws: every method returns the deltas of one step; their sum is one event at the current epoch
    while the input is open or idle, and nothing once it is closed. Epochs only go up.

    >>> source = EpochInput(place=0)
    >>> source.opened()
    ((0, Time(0), 1),)
    >>> source.close_epoch()
    ((0, Time(1), 1), (0, Time(0), -1))
    >>> source.go_idle(), source.state.value, source.epoch
    (((0, Time(2), 1), (0, Time(1), -1)), 'idle', 2)
    >>> source.resume(7); source.close()
    ((0, Time(7), -1),)
    """

    def __init__(self, place: int, epoch: int = 0) -> None:
        self.place = place
        self.epoch = epoch
        self.state = InputState.OPEN

    @property
    def time(self) -> Time:
        """The time of the current epoch: messages carry it."""
        return Time(self.epoch)

    def opened(self) -> Deltas:
        """Return what the input holds; counted by all views before the flow starts."""
        self._expect(InputState.OPEN)
        return ((self.place, self.time, 1),)

    def close_epoch(self, following: int | None = None) -> Deltas:
        """End the current epoch and go on with the next one, or with a later one."""
        self._expect(InputState.OPEN)
        ended, epoch = self.time, self.epoch + 1 if following is None else following
        if epoch <= self.epoch:
            raise InvariantError(f"epoch {epoch} cannot follow epoch {self.epoch}")
        self.epoch = epoch
        return ((self.place, self.time, 1), (self.place, ended, -1))

    def go_idle(self) -> Deltas:
        """End the current epoch and lend the next one to the controller.

        Flush these deltas, then tell the controller (it calls :meth:`IdleInputs.lend`), and let the
        buffer ``assume(place, time, -1)``: the event is no longer this worker's.
        """
        deltas = self.close_epoch()
        self.state = InputState.IDLE
        return deltas

    def resume(self, epoch: int) -> None:
        """Take the loan back at ``epoch``, as the controller said; the buffer assumes it again."""
        self._expect(InputState.IDLE)
        if epoch < self.epoch:
            raise PeerError(f"an input was resumed at epoch {epoch}, behind its own {self.epoch}")
        self.epoch, self.state = epoch, InputState.OPEN

    def close(self) -> Deltas:
        """Close for good: nothing will come from this input."""
        self._expect(InputState.OPEN)
        self.state = InputState.CLOSED
        return ((self.place, self.time, -1),)

    def _expect(self, state: InputState) -> None:
        if self.state is not state:
            raise InvariantError(
                f"an input must be {state.value} for that; it is {self.state.value}"
            )


class IdleInputs:
    """What idle inputs lent to the controller, moved along so that no stage waits for them.

    Laws
      * lending and giving back change no counts; :meth:`follow` only moves loans forward;
      * after :meth:`follow`, no loan is before every busy input (or, if none is busy, before
        another loan): an idle input alone never holds a frontier back.

    >>> from penstock.core.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> place = b.input("in")
    >>> tracker = Tracker(b.build())
    >>> moved = tracker.apply([(0, Time(1), 1), (0, Time(5), 1)])    # one slow shard, one quick
    >>> idle = IdleInputs(tracker)
    >>> idle.lend("slow", 0, 1)
    >>> idle.follow()
    ((0, Time(5), 1), (0, Time(1), -1))
    >>> idle.resume("slow")
    5
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._loans: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._loans)

    def lend(self, name: str, place: int, epoch: int) -> None:
        """Take over what the input ``name`` holds; its deltas up to here were received before."""
        if name in self._loans:
            raise PeerError(f"input {name} is idle already")
        if self._tracker.count(place, Time(epoch)) <= self._lent(place, epoch):
            raise PeerError(f"input {name} lends epoch {epoch}, which it does not hold")
        self._loans[name] = (place, epoch)

    def follow(self) -> Deltas:
        """Return deltas that move the loans up to the busy inputs (for ``Accumulator.add``)."""
        if not self._loans:
            return ()
        floor = self._floor()
        arrived: list[tuple[int, Time, int]] = []
        gone: list[tuple[int, Time, int]] = []
        for name, (place, epoch) in self._loans.items():
            if epoch < floor:
                self._loans[name] = (place, floor)
                arrived.append((place, Time(floor), 1))
                gone.append((place, Time(epoch), -1))
        return (*arrived, *gone)

    def resume(self, name: str) -> int:
        """Give the loan back; return the epoch that the input goes on with."""
        return self._return(name)[1]

    def close(self, name: str) -> Deltas:
        """Close an idle input for good."""
        place, epoch = self._return(name)
        return ((place, Time(epoch), -1),)

    def _return(self, name: str) -> tuple[int, int]:
        if name not in self._loans:
            raise PeerError(f"input {name} is not idle")
        return self._loans.pop(name)

    def _lent(self, place: int, epoch: int) -> int:
        return sum(loan == (place, epoch) for loan in self._loans.values())

    def _floor(self) -> int:
        """Return the least epoch of a busy input, or the latest loan if all are idle."""
        busy = [
            time.epoch
            for place in self._tracker.graph.inputs()
            for time, count in self._tracker.counts(place).items()
            if count > self._lent(place, time.epoch)
        ]
        return min(busy) if busy else max(epoch for _, epoch in self._loans.values())
