"""The options of ``Flow.start``, and of the local runs in :mod:`penstock.testing.local`.

The text under each option is its reference: the table in ``docs/options.md`` is made from it.
:class:`penstock.engine.settings.RunSettings` holds the defaults and checks the values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from pyarrow import fs

from penstock.api.regimes import Regime
from penstock.durations import Duration

if TYPE_CHECKING:
    from penstock.engine.host.tuning import Tuning

__all__ = ["ProgressName", "RecoveryName", "RunOptions", "StartOptions"]

ProgressName = Literal["marks", "tracked"]
RecoveryName = Literal["causal", "none", "purge"]


class RunOptions(TypedDict, total=False):
    """All options but the number of hosts."""

    parallelism: int | None
    """Number of shards of a stage that does not set its own. By default one per host."""
    checkpointLocation: str | os.PathLike[str] | fs.FileSystem | None
    """Where everything that must survive a restart is kept: offsets of epochs, commits of sinks,
    state. A flow that is started again with the same location continues where it stopped. Give a
    directory, an address that pyarrow knows (``s3://bucket/folder``, ``hdfs://...``), or a
    ``pyarrow.fs.FileSystem`` whose root is the location. ``persist``, Spark stages and tables need
    a directory. By default nothing survives."""
    availableNow: bool
    """End the flow when the input that exists at the start is used up."""
    epochInterval: Duration
    """How often sources end an epoch. They also end one at the end of each window."""
    drainTimeout: Duration
    """How long ``stop()`` waits for rows in flight to reach the sinks."""
    hostTimeout: Duration
    """How long the driver may hear nothing from a host before it declares the host lost."""
    pingInterval: Duration
    """How often hosts ping each other; 0 turns pings off. A process that exits is noticed at once
    in any case."""
    pingTimeout: Duration
    """How long a host may leave pings unanswered before other hosts take its nodes. Where answers
    are sometimes late, the timeout grows up to four times."""
    takeover: Literal["least-loaded", "next", "split"]
    """Which host takes the nodes of a lost host when no spare is ready: the least loaded host, the
    next host in the ring, or all hosts, each a part."""
    reinstate: bool
    """Whether nodes move back when a replacement of their lost host has come up."""
    startTimeout: Duration
    """How long the hosts may take to start."""
    lease: Duration
    """How long a host lives without hearing from its driver."""
    windowBytes: int
    """Bytes that each host may have in flight to a node."""
    rowsMax: int
    """Most rows in one batch of a source."""
    linger: Duration | None
    """How long rows gather at a source before it reads them, unless an epoch or a window ends
    sooner. None: until there are about a thousand, from 5 ms to a quarter of an epoch."""
    progressInterval: Duration
    """How often ``lastProgress`` is updated and listeners are called."""
    progress: ProgressName
    """How nodes outside loops learn that an epoch is complete. "marks" travel with the rows;
    "tracked" counts every message, as loops do, and supports no recovery."""
    recovery: RecoveryName
    """What happens when a host is lost. "causal" restarts only its nodes, from what their
    neighbours know. "none" ends the flow; it keeps no state, so a flow with state and a
    ``checkpointLocation`` must promise "at-most-once" only. "purge" rebuilds everything from the
    sources, for comparison."""
    onError: Literal["stop", "restart", "skip"]
    """What happens when a stage without an error policy of its own raises; see
    ``Stream.onError``."""
    regime: Regime | None
    """A regime for the whole flow instead of one per stage, such as
    ``GlobalCheckpoint``."""
    guarantee: Literal["exactly-once", "at-least-once", "at-most-once"]
    """What is promised of every row in sinks without a guarantee of their own; see
    ``Flow.setGuarantee``."""
    checkpointInterval: Duration
    """How often a node with state saves it, at most. Large states are saved less often."""
    rollbackWindow: Duration
    """How far back ``rollback`` can go. Checkpoints, logs and input are kept this much longer than
    recovery needs them."""
    dropState: Sequence[str]
    """Names of stages that start without the state that the ``checkpointLocation`` holds for them,
    because the flow has changed."""
    acceptTargets: Sequence[str]
    """Names of sources and sinks that have moved since the last run (the new place must hold
    everything that the old one held), or whose output folder was emptied on purpose."""
    logs: Literal["references", "copies"]
    """Whether a node's log refers to the batches it sent, or copies them first, for comparison."""
    logBytes: int
    """Memory for batches that a node may have to send again. The rest goes to disk."""
    standby: int | Literal["active"]
    """Number of spare hosts that are ready to take over the nodes of a lost one. "active" keeps one
    spare that also follows the states of all nodes, so that taking over needs no restore; states
    are then saved every 100 ms as far as that takes at most 5 % of the time."""
    storeTimeout: Duration
    """How long the flow waits while its store, or the folder of a sink, cannot be written. It
    commits nothing meanwhile and continues by itself. After that it ends and says why."""
    maxOverhead: float | None
    """The share of time that checkpoints and logs may take, summed over operators, such as 0.05.
    The flow then measures itself, plans how often to checkpoint, and plans again when the
    measurements change. By default nothing is planned."""
    planInterval: Duration
    """How often a flow with ``maxOverhead`` considers a new plan."""
    tuning: Tuning
    """Low-level settings of the host processes; see ``penstock.engine.host.tuning.Tuning``."""


class StartOptions(RunOptions, total=False):
    """All options of ``Flow.start``."""

    hosts: int | None
    """Number of Spark tasks that run the flow's nodes. By default one per node, as far as there are
    free task slots; one slot is left for DataFrame jobs."""
