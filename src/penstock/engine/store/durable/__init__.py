"""What a node makes durable, and payloads that left memory.

    state/<stage>/<shard>/<incarnation>/checkpoint-<key>.arrow      state, clock and both logs
    state/<stage>/<shard>/<incarnation>/determinants.log            which input came when

The folder belongs to one incarnation.  A fence renames it, so that whatever the old one writes is
refused by the file system itself.
"""

from penstock.engine.store.durable.checkpoint_file import BlockCache, DamagedError, Read
from penstock.engine.store.durable.node_store import (
    Beginnings,
    NodeStore,
    fence,
    read_stored,
    stored_incarnation,
)
from penstock.engine.store.durable.spill import SpillFile
from penstock.engine.store.durable.stall import Stall
from penstock.engine.store.durable.writer import CheckpointWriter
from penstock.engine.store.durable.writes import Writes

__all__ = [
    "Beginnings",
    "BlockCache",
    "CheckpointWriter",
    "DamagedError",
    "NodeStore",
    "Read",
    "SpillFile",
    "Stall",
    "Writes",
    "fence",
    "read_stored",
    "stored_incarnation",
]
