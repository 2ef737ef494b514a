"""What travels between replicas: parcels as messages with rows, everything else packed.

A parcel's payload is a :class:`Cargo`: rows and the place of its read among the epochs of its lane.
From that alone a sink knows when an epoch of a lane is complete, on any host.  Parcels
for a role travel as messages of the transport, under its credit; records, acknowledgements, floors
and questions are packed with msgpack.  Nothing is ever unpickled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack
import pyarrow as pa

from penstock.core.delivery.ids import ParcelId, Role
from penstock.core.delivery.lane_epochs import LaneRead
from penstock.core.delivery.messages import (
    Acknowledge,
    Answered,
    Ask,
    Body,
    Collect,
    Collected,
    Envelope,
    Floors,
    HandedOver,
    Introduced,
    Parcel,
    ParcelRecord,
    Refused,
    Share,
    Shared,
)
from penstock.core.delivery.player import RoleState
from penstock.core.delivery.routing import Seat
from penstock.core.delivery.tables import Entry, HeldParcel, RecordTable
from penstock.core.node.messages import DATA, MARK, Message
from penstock.core.time import Time
from penstock.errors import InvariantError
from penstock.wire.frames import write_batch

__all__ = ["Arrival", "Cargo", "message_of", "pack", "parcel_of", "sender_of", "unpack"]


class Cargo(NamedTuple):
    """The rows of a parcel, and which read of its lane they come from."""

    link: int
    epoch: int
    first: int
    """The number of the first read of the epoch."""
    last: bool
    """Whether the epoch ended with this read."""
    previous: int
    """The lane's epoch before this one."""
    previous_us: int | None
    """The watermark after that one."""
    watermark_us: int | None
    cut_us: int
    rows: Any = None
    """A record batch, or a buffer that holds one; None: there are none."""

    @property
    def read(self) -> LaneRead:
        """The place of its read among the epochs of its lane."""
        return LaneRead(
            self.epoch, self.first, self.last, self.previous, self.previous_us, self.watermark_us
        )


class Arrival(NamedTuple):
    """An envelope that has come to a role."""

    envelope: Envelope
    completed: int | None
    """With a role that is handed over to a sink: the last epoch that is published."""


# -- parcels as messages ---------------------------------------------------------------------------


def message_of(envelope: Envelope, parcel: Parcel, sender: int, target: int) -> Message:
    """The message that brings a parcel to a role."""
    cargo: Cargo = parcel.payload
    id_ = parcel.id
    stamp: Any = (envelope.host, *id_.lane, id_.number, id_.branch, *cargo[2:6])
    return Message(
        MARK if cargo.rows is None else DATA,
        cargo.link,
        sender,
        target,
        envelope.incarnation,
        0,
        Time.root(cargo.epoch),
        cargo.watermark_us,
        cargo.cut_us,
        cargo.rows,
        parcel.size,
        envelope.target_incarnation,
        stamp,
    )


def parcel_of(message: Message) -> Parcel:
    """The parcel that a message brings."""
    stamp: Any = message.stamp
    _, stage, place, number, branch, first, last, previous, previous_us = stamp
    cargo = Cargo(
        message.link,
        message.time.epoch,
        first,
        last,
        previous,
        previous_us,
        message.watermark_us,
        message.cut_us,
        message.payload,
    )
    return Parcel(ParcelId(Role(stage, place), number, branch), cargo, message.size)


def sender_of(message: Message) -> int:
    """The member that sent it."""
    stamp: Any = message.stamp
    return int(stamp[0])


# -- everything else -------------------------------------------------------------------------------

_KINDS: tuple[type[Any], ...] = (
    Acknowledge,
    Floors,
    Share,
    Shared,
    Collect,
    Collected,
    Introduced,
    Ask,
    Answered,
    HandedOver,
    Refused,
)


def pack(envelope: Envelope, completed: int | None = None) -> bytes:
    """An envelope; with a role that is handed over goes the epoch that it has completed."""
    kind = _KINDS.index(type(envelope.body))
    head = (kind, *envelope[:5], completed)
    packed: bytes = msgpack.packb((head, _plain(envelope.body)))
    return packed


def unpack(packed: bytes) -> Arrival:
    """The envelope that :func:`pack` packed, and the completed epoch."""
    head, plain = msgpack.unpackb(packed, use_list=False, strict_map_key=False)
    kind, host, sender, incarnation, target, number, completed = head
    body = _body(_KINDS[kind], plain)
    envelope = Envelope(host, _role(sender), incarnation, _role(target), number, body)
    return Arrival(envelope, completed)


def _plain(body: Body) -> Any:
    if isinstance(body, Acknowledge):
        return [(*_id(id_), level) for id_, level in body.levels]
    if isinstance(body, Floors):
        return _floors(body.floors)
    if isinstance(body, Share):
        return body.number, _records(body.records), _floors(body.floor), body.whole
    if isinstance(body, Collected):
        return body.host, _records(body.records), _floors(body.floor)
    if isinstance(body, Introduced):
        return body.host, [
            (role, incarnation, _records(records), _floors(floor))
            for role, incarnation, records, floor in body.copies
        ]
    if isinstance(body, Ask):
        return None if body.ids is None else [_id(id_) for id_ in body.ids]
    if isinstance(body, HandedOver):
        return _state(body.state), body.size
    return tuple(body)


def _body(kind: type[Any], plain: Any) -> Body:
    if kind is Acknowledge:
        return Acknowledge(tuple((_id_from(one), one[4]) for one in plain))
    if kind is Floors:
        return Floors(_floors_from(plain))
    if kind is Share:
        number, records, floor, whole = plain
        return Share(number, _records_from(records), _floors_from(floor), whole)
    if kind is Collected:
        host, records, floor = plain
        return Collected(host, _records_from(records), _floors_from(floor))
    if kind is Introduced:
        host, copies = plain
        return Introduced(
            host,
            tuple(
                (Role(*role), incarnation, _records_from(records), _floors_from(floor))
                for role, incarnation, records, floor in copies
            ),
        )
    if kind is Ask:
        return Ask(None if plain is None else tuple(map(_id_from, plain)))
    if kind is HandedOver:
        state, size = plain
        return HandedOver(_state_from(state), size)
    if kind is Refused:
        role, fence = plain
        return Refused(Role(*role), fence)
    found: Body = kind(*plain)
    return found


def _role(plain: Any) -> Role | None:
    return None if plain is None else Role(*plain)


def _id(id_: ParcelId) -> tuple[int, int, int, int]:
    return (*id_.lane, id_.number, id_.branch)


def _id_from(plain: Any) -> ParcelId:
    return ParcelId(Role(plain[0], plain[1]), plain[2], plain[3])


def _floors(floors: Any) -> list[tuple[int, int, int]]:
    return [(*lane, number) for lane, number in floors.items()]


def _floors_from(plain: Any) -> dict[Role, int]:
    return {Role(stage, place): number for stage, place, number in plain}


def _records(records: Any) -> list[tuple[Any, ...]]:
    return [
        (*_id(record.id), *record.origin, record.level, *_cargo(record.parcel))
        for record in records
    ]


def _records_from(plain: Any) -> tuple[ParcelRecord, ...]:
    return tuple(
        ParcelRecord(_id_from(one), Role(one[4], one[5]), one[6], _parcel(_id_from(one), one[7:]))
        for one in plain
    )


def _cargo(parcel: Parcel | None) -> tuple[Any, ...]:
    """A parcel without its id; empty: there is none."""
    if parcel is None:
        return ()
    cargo: Cargo = parcel.payload
    return (parcel.size, *cargo[:8], _bytes(cargo.rows))


def _parcel(id_: ParcelId, plain: Any) -> Parcel | None:
    if not plain:
        return None
    rows = None if plain[-1] is None else pa.py_buffer(plain[-1])
    return Parcel(id_, Cargo._make((*plain[1:-1], rows)), plain[0])


def _bytes(rows: Any) -> bytes | None:
    if rows is None:
        return None
    buffer = write_batch(rows) if isinstance(rows, pa.RecordBatch) else rows
    return bytes(buffer.to_pybytes())


def _state(state: RoleState) -> tuple[Any, ...]:
    works = [
        (
            *_id(id_),
            work.origin,
            None if work.outputs is None else [(*_id(i), n) for i, n in work.outputs.items()],
            work.told,
            _cargo(work.parcel),
        )
        for id_, work in state.works.items()
    ]
    entries = [
        (
            *_id(id_),
            entry.target,
            None if entry.parent is None else _id(entry.parent),
            entry.level,
            entry.host,
            entry.incarnation,
            entry.via,
            _cargo(entry.parcel),
        )
        for id_, entry in state.entries.items()
    ]
    asks = [(role, None if i is None else list(map(_id, i))) for role, i in state.asks.items()]
    heard = [(role, _floors(floors)) for role, floors in state.heard.items()]
    table = (_records(state.table.records.values()), _floors(state.table.floor))
    seats = [(role, seat) for role, seat in state.seats.items()]
    return table, works, entries, asks, heard, state.next, seats


def _state_from(plain: Any) -> RoleState:
    (records, floor), works, entries, asks, heard, next_, seats = plain
    table = RecordTable({r.id: r for r in _records_from(records)}, _floors_from(floor))
    return RoleState(
        table,
        {_id_from(one): _work(one) for one in works},
        {_id_from(one): _entry(one) for one in entries},
        {Role(*role): None if i is None else tuple(map(_id_from, i)) for role, i in asks},
        {Role(*role): _floors_from(floors) for role, floors in heard},
        next_,
        {Role(*role): Seat(*seat) for role, seat in seats},
    )


def _work(plain: Any) -> HeldParcel:
    origin, outputs, told, cargo = plain[4:]
    found = None if outputs is None else {_id_from(one): one[4] for one in outputs}
    return HeldParcel(Role(*origin), _parcel(_id_from(plain), cargo), found, told=told)


def _entry(plain: Any) -> Entry:
    target, parent, level, host, incarnation, via, cargo = plain[4:]
    parcel = _parcel(_id_from(plain), cargo)
    if parcel is None:
        raise InvariantError(f"a delivery table without the parcel {plain[:4]}")
    above = None if parent is None else _id_from(parent)
    return Entry(parcel, Role(*target), above, level, host, incarnation, tuple(via))
