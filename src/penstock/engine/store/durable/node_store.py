"""The store of one node: its checkpoints and determinants, for one incarnation at a time.

The folder of an incarnation is made by :func:`fence` alone.  Fencing gives it to the new
incarnation, in one step (:mod:`penstock.storage`).  A process that still writes for the old one
finds that its folder is gone: a checkpoint cannot be given its name, and an append to the log,
though its file is open, is not reported as durable.  Logs go on in new files, so what the old one
appends later is never read.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
from collections.abc import Collection, Iterable
from pathlib import Path, PurePath
from typing import NamedTuple

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import Diff
from penstock.core.causal.reports import NodeReport, Saved, Stored
from penstock.core.causal.times import ZERO, Stamp
from penstock.core.control.retention import KEPT_MIN, oldest_kept
from penstock.core.node.causal_effects import Checkpoint
from penstock.engine.host.chain_state import ChainState
from penstock.engine.store.durable.checkpoint_file import (
    BlockCache,
    DamagedError,
    Manifest,
    Read,
    read_checkpoint,
    read_manifest,
    write_checkpoint,
)
from penstock.engine.store.durable.determinants import DeterminantLog, whole_records
from penstock.engine.store.durable.segments import Known
from penstock.engine.store.logs import StoreLog
from penstock.errors import PeerError, SettingsError, TransientError
from penstock.storage import StoreLike, storage_of
from penstock.storage.storage import stage_prefix

__all__ = ["Beginnings", "NodeStore", "fence", "read_stored", "state_folder", "stored_incarnation"]

log = logging.getLogger(__name__)

LOG_BYTES_MAX = 1 << 17
"""A log of determinants is cut at its beginning when it is longer than this."""

_NAME = re.compile(r"checkpoint-(\d{12,})\.arrow")
_SEGMENT = re.compile(r"(?:state|log)-(\d{12,})\.arrow")
_EVER = re.compile(r"checkpoint-(\d{12,})\.(?:arrow|damaged|void)")


class _Entry(NamedTuple):
    """What a store remembers of a checkpoint."""

    epoch: int
    stamp: Stamp
    segments: frozenset[str]


def _entry(found: Manifest) -> _Entry:
    return _Entry(found.report.completed, found.report.stamp, frozenset(found.segments))


class NodeStore:
    """What one incarnation of a node makes durable; :func:`fence` must have made its folder."""

    def __init__(
        self,
        store: StoreLike,
        stage: str,
        shard: int,
        incarnation: int,
        sync: bool = True,
        kept: int = KEPT_MIN,
    ) -> None:
        self.name = f"{stage}[{shard}]"
        self.incarnation = incarnation
        home = storage_of(store).node(stage, shard, incarnation, sync, whole_records)
        self.path, self.folder, self._is_away = home.path, home.folder, home.is_away
        self._kept = kept
        self._entries: dict[int, _Entry] = {}
        self._known = Known()
        self.log_size = self.state_size = 0
        """Of the last checkpoint: bytes written of what was sent, and all bytes of its state."""
        self.low_epoch = -1
        """No recovery goes back behind this epoch: checkpoints that are not needed for that go."""
        self._log = DeterminantLog(home.log)

    # -- checkpoints -----------------------------------------------------------------------------

    def keys(self) -> list[int]:
        """The keys of the checkpoints that there are, oldest first."""
        return sorted(
            int(found.group(1)) for name in self._names() if (found := _NAME.fullmatch(name))
        )

    def exists(self) -> bool:
        """Whether the folder is there, and this incarnation's."""
        try:
            self._names()
        except (PeerError, FileNotFoundError):
            return False
        return True

    def newest(self) -> int:
        """The key of the newest checkpoint that there ever was, of use or not; 0: none."""
        found = [_EVER.fullmatch(name) for name in self._names()]
        return max((int(one.group(1)) for one in found if one), default=0)

    def manifest(self, key: int, names: Collection[str] | None = None) -> Manifest:
        """What a checkpoint says of itself; it is refused if a file that it needs is not there.

        With the ``names`` of all files their sizes are left to who reads them.
        """
        found = read_manifest(self.folder, checkpoint_name(key))
        for name, size in found.segments.items():
            if names is not None and name in names:
                continue
            there = self.folder.size(name)
            if there != size:
                raise DamagedError(f"{name} has {there} bytes instead of {size}")
        self._entries[key] = _entry(found)
        return found

    def names(self) -> set[str]:
        """All files of the node."""
        return set(self._names())

    def epochs(self) -> dict[int, int]:
        """The last complete epoch of each checkpoint that can be read, by its key, oldest first."""
        found: dict[int, int] = {}
        for key in self.keys():
            entry = self._entries.get(key)
            try:
                found[key] = (entry or _entry(self.manifest(key))).epoch
            except (DamagedError, FileNotFoundError):
                continue  # who wants to start from it is told
        return found

    def size(self, key: int) -> int:
        """The bytes of a checkpoint and of what it refers to; 0 if it is gone."""
        try:
            shared = sum(self.manifest(key).segments.values())
            return shared + self.folder.size(checkpoint_name(key))
        except (DamagedError, FileNotFoundError):
            return 0

    def write_checkpoint(self, key: int, checkpoint: Checkpoint, state: ChainState) -> int:
        """Make a checkpoint durable; returns how many bytes had to be written for it."""
        try:
            written = write_checkpoint(
                self.folder, checkpoint_name(key), checkpoint, state, self._known
            )
        except FileNotFoundError as error:
            raise self._fenced() from error
        self._known = written.known
        self.log_size, self.state_size = written.log_size, written.state_size
        self._entries[key] = _entry(written.manifest)
        return written.size

    def read_checkpoint(self, key: int, cache: BlockCache | None = None) -> Read:
        """Read a checkpoint of any incarnation, but for the blocks that ``cache`` has."""
        return read_checkpoint(self.folder, checkpoint_name(key), cache)

    def go_on(self, known: Known) -> None:
        """The next checkpoint builds on what is durable with one that was read."""
        self._known = known

    def load_checkpoint(self, key: int) -> tuple[Checkpoint, ChainState]:
        """Read the checkpoint to start from.

        One that is damaged is put out of the way, so that the next plan uses the one before it.
        """
        name = checkpoint_name(key)
        try:
            read = self.read_checkpoint(key)
            self.go_on(read.known)
            return read.checkpoint, read.state
        except (DamagedError, FileNotFoundError) as error:
            self._entries.pop(key, None)
            self._names()  # refused if this is not why
            with contextlib.suppress(OSError):
                self.folder.set_aside(name, f"{name.removesuffix('.arrow')}.damaged")
            raise TransientError(
                f"node {self.name}: checkpoint {self.path / name} cannot be used ({error}); "
                "start the node again, from the checkpoint before it",
                node=self.name,
                checkpoint=key,
            ) from error

    def drop_before(self, key: int) -> None:
        """Forget the checkpoints before one, and now and then the determinants before them."""
        for name in self._names():
            found = _EVER.fullmatch(name)
            if found and int(found.group(1)) < key:
                self.folder.delete(name)
                self._entries.pop(int(found.group(1)), None)
        kept = self.epochs()
        if kept:
            self._drop_segments(kept)
        if kept and self._log.size_bytes > LOG_BYTES_MAX:
            begin = self._entries[min(kept)].stamp
            self._log.cut(lambda stamp: stamp > begin, begin)

    def _drop_segments(self, kept: Iterable[int]) -> None:
        """Delete the files that no checkpoint refers to; newer ones belong to one that comes."""
        used = {name for key in kept for name in self._entries[key].segments}
        newest = max(kept)
        for name in self._names():
            found = _SEGMENT.fullmatch(name)
            if found and name not in used and int(found.group(1)) <= newest:
                self.folder.delete(name)

    def keep_from(self, epoch: int) -> None:
        """Keep the newest checkpoint at or before an epoch and all after it; forget the others."""
        self._drop_to(epoch, 1)

    def prune(self) -> None:
        """Forget what no recovery can ask for any more, as far as :attr:`low_epoch` says."""
        self._drop_to(self.low_epoch, self._kept)

    def _drop_to(self, epoch: int, at_least: int) -> None:
        oldest = oldest_kept(self.epochs(), epoch, at_least)
        if oldest is not None:
            self.drop_before(oldest)

    def roll_back(self, key: int, trim: Stamp, through: int = -1) -> None:
        """The node starts from a checkpoint (0: its initial state): what came after it is void.

        That it was there is remembered: others may have forgotten what came before it.  So is that
        the determinants of steps up to epoch ``through`` were there, or not needed.
        """
        for newer in self.keys():
            if newer > key:
                name = checkpoint_name(newer)
                self._entries.pop(newer, None)
                self.folder.set_aside(name, f"{name.removesuffix('.arrow')}.void")
        self._log.cut(lambda stamp: stamp <= trim, through=through)

    # -- determinants ----------------------------------------------------------------------------

    def append_determinants(self, diffs: Iterable[Diff]) -> None:
        """Make the order of inputs durable."""
        try:
            self._log.append(diffs)
        except PeerError:
            self._fenced()  # or is the whole store gone?
            raise

    def truncate_determinants(self, after: Stamp) -> None:
        """Forget the determinants of later steps."""
        self._log.cut(lambda stamp: stamp <= after)

    def through(self) -> int:
        """Up to which epoch no determinant is missing, whatever is in the log."""
        return self._log.through()

    def determinants(self) -> tuple[Stamp, tuple[Diff, ...]]:
        """Where the log begins (``ZERO``: at the beginning of everything), and what is in it."""
        return self._log.read()

    def close(self) -> None:
        """Close the log; a later append opens it again."""
        self._log.close()

    # -- inside ----------------------------------------------------------------------------------

    def checkpoint_path(self, key: int) -> PurePath:
        """The file of a checkpoint."""
        return self.path / checkpoint_name(key)

    def _names(self) -> list[str]:
        try:
            return self.folder.names()
        except FileNotFoundError as error:
            raise self._fenced() from error

    def _fenced(self) -> PeerError:
        if self._is_away():
            raise FileNotFoundError(errno.ENOENT, "the store is gone", str(self.path))
        return PeerError(
            f"node {self.name}: incarnation {self.incarnation} was replaced, its folder "
            f"{self.path} is gone; it must stop",
            node=self.name,
            incarnation=self.incarnation,
        )


def checkpoint_name(key: int) -> str:
    """The file of a checkpoint in a node's folder."""
    return f"checkpoint-{key:012d}.arrow"


def fence(store: StoreLike, stage: str, shard: int, incarnation: int, sync: bool = False) -> None:
    """Give a node's store to a new incarnation and refuse every older one; doing it again is fine.

    Called by the controller alone.
    """
    storage = storage_of(store)
    storage.fence(stage, shard, incarnation, sync)
    home = storage.node(stage, shard, incarnation, sync, whole_records)
    DeterminantLog(home.log).cut(lambda stamp: True)


def stored_incarnation(store: StoreLike, stage: str, shard: int) -> int:
    """The incarnation that a node's store belongs to; 0: it has none yet."""
    return storage_of(store).incarnation(stage, shard)


def read_stored(
    where: StoreLike,
    stage: str,
    shard: int,
    incarnation: int,
    node: int,
    children: Iterable[int],
    parents: Iterable[int] = (),
    beginnings: Beginnings | None = None,
    newest: int | None = None,
) -> Stored:
    """What a plan may build on: reports of the checkpoints, and the determinants.

    Key 0 stands for the initial state.  It is there as long as no node may have forgotten what came
    after it (:class:`Beginnings`).  Checkpoints that cannot be read are left out, and so are all
    but the ``newest`` ones.
    """
    store = NodeStore(where, stage, shard, incarnation)
    begin, determinants = store.determinants()
    saved: list[Saved] = []
    if begin == ZERO and not (beginnings or Beginnings(where)).is_gone(store.name):
        initial = NodeReport(
            node,
            clock=dict.fromkeys(parents, Position()),
            floors=dict.fromkeys(children, Floor()),
        )
        saved.append(Saved(0, initial))
    names = None if newest is None else store.names()
    found: list[Saved] = []
    for key in reversed(store.keys()):
        if newest is not None and len(found) >= newest:
            break
        path = store.checkpoint_path(key)
        try:
            found.append(Saved(key, store.manifest(key, names).report))
        except (DamagedError, FileNotFoundError) as error:
            log.warning("node %s: checkpoint %s is left out: %s", store.name, path, error)
    return Stored((*saved, *reversed(found)), determinants, through=store.through())


class Beginnings:
    """Which nodes can no longer start from their initial states; written by the controller alone.

    Once a low epoch is told, senders and sources forget what came before it, and with it the way
    from the beginning.  So it is durable here before any host is told.
    """

    def __init__(self, store: StoreLike, sync: bool = False) -> None:
        self._log = StoreLog.of(store, "state/begun.log", sync)
        self._known: frozenset[str] | None = None
        self._all = False
        """Whether the record is damaged; then no node may start from the beginning."""

    def is_gone(self, name: str) -> bool:
        """Whether a node's initial state is of no use any more."""
        return name in self._gone() or self._all

    def forget(self, names: Iterable[str]) -> None:
        """The initial states of some nodes are of no use from now on; doing it again is free."""
        known = self._gone()
        all_names = known.union(names)
        if len(all_names) > len(known):
            self._log.replace([{"gone": sorted(all_names)}])
            self._known = all_names

    def _gone(self) -> frozenset[str]:
        if self._known is None:
            found: list[str] = []
            try:
                for record in self._log.read():
                    found += record["gone"]
                self._all = not found and self._log.exists()
            except SettingsError:
                self._all = True
            if self._all:
                log.warning(
                    "%s is damaged: no node starts from its initial state, where it has one",
                    self._log.path,
                )
            self._known = frozenset(found)
        return self._known


def state_folder(directory: Path, stage: str) -> Path:
    """Where the nodes of a stage keep their states, in a store that is a directory."""
    return directory / stage_prefix(stage)
