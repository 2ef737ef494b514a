"""The flow's store: what must outlive the driver, under ``checkpointLocation``.

    metadata.json                     the flow's id, name, version, and the stages that matter
    lock                              held by the one driver that runs the flow
    driver.json                       while it runs: where that driver can be reached
    sources/<stage>/shard-00000.log   the end of each epoch: position, journal, watermark
    commits/<stage>.log               how far each sink has got
    commits/<stage>.delivered.log     how far foreachBatch has, noted after each call
    skipped.json                      rows that stages pass over because no process survives them
    story.log                         what happened in recoveries, for people

The logs are described in :mod:`penstock.engine.store.logs`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import fs

from penstock.engine.driver.command_channel import DRIVER_FILE, DriverAddress
from penstock.engine.store.logs import BoundaryLog, CommitLog, ResumePoint
from penstock.errors import SettingsError
from penstock.storage import Storage, storage_of
from penstock.storage.claims import claim

__all__ = ["BoundaryLog", "CommitLog", "FlowStore", "ResumePoint", "StageRecord", "user_name"]

_FORMAT = 2
_METADATA = "metadata.json"


@dataclass(frozen=True)
class StageRecord:
    """What must not change about a stage while its flow's store is kept."""

    kind: str
    shards: int = 1
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names and types, where stored data depends on them."""
    target: str | None = None
    """Where a source reads or a sink publishes, if that is known by an address."""


class FlowStore:
    """The store of one flow: made, locked and checked on the driver."""

    def __init__(self, checkpointLocation: str | os.PathLike[str] | fs.FileSystem) -> None:
        self.storage: Storage = storage_of(checkpointLocation)
        self.id = ""
        self.fresh = True
        """Whether the flow has never run with this store."""
        self.targets: Mapping[str, str | None] = {}
        """Where its sources and sinks were in the run before."""
        self._commits: dict[str, CommitLog] = {}
        self._release: Callable[[], None] | None = claim(self.storage)

    @property
    def path(self) -> Path:
        """The store's directory, for what needs one."""
        if self.storage.directory is None:
            raise SettingsError(
                f"checkpointLocation {self.storage} is not a directory, and this flow needs one "
                "that the driver and the hosts share: for persist(), Spark stages and tables",
                path=str(self.storage),
            )
        return self.storage.directory

    def begin(
        self,
        name: str,
        version: str,
        stages: Mapping[str, StageRecord],
        accept: Collection[str] = (),
    ) -> str:
        """Check that this is the flow the store belongs to; returns the flow's id.

        ``stages`` are those whose records, outputs or state are kept: sources, sinks, stateful
        stages.  A change among them is refused, and the error says what changed.  Those named in
        ``accept`` may be at another place than they were.
        """
        wanted = {
            stage: {
                "kind": record.kind,
                "shards": record.shards,
                "columns": {key: str(kind) for key, kind in record.columns.items()},
                "target": record.target,
            }
            for stage, record in stages.items()
        }
        kept = self._metadata()
        if kept is None:
            self.id, self.fresh = str(uuid.uuid4()), True
        else:
            self.targets = {stage: one.get("target") for stage, one in kept["stages"].items()}
            changes = _changes(kept, name, wanted)
            moved = [s for s in _moved(self.targets, wanted) if user_name(s) not in accept]
            changes += [
                f"{user_name(stage)!r} was at {self.targets[stage]}, now at "
                f"{wanted[stage]['target']}"
                for stage in moved
            ]
            if changes:
                moved_only = (
                    f". If all that was there is at the new place now, start with acceptTargets="
                    f"{[*map(user_name, moved)]}"
                    if len(moved) == len(changes)
                    else ""
                )
                raise SettingsError(
                    f"checkpointLocation {self.storage} belongs to another flow, or this one has "
                    f"changed: {'; '.join(changes)}. Undo the change, or give a new "
                    f"checkpointLocation{moved_only}",
                    path=str(self.storage),
                )
            self.id, self.fresh = kept["id"], False
        metadata = {
            "format": _FORMAT,
            "id": self.id,
            "name": name,
            "version": version,
            "stages": wanted,
        }
        if kept != metadata:
            self.storage.write(_METADATA, json.dumps(metadata, indent=1).encode())
        return self.id

    def recorded_shards(self) -> dict[str, int]:
        """How many shards each source had when the flow first ran with this store."""
        kept = self._metadata() or {"stages": {}}
        return {
            stage: record["shards"]
            for stage, record in kept["stages"].items()
            if record["kind"] == "source"
        }

    def boundaries(self, source_name: str, shard: int) -> BoundaryLog:
        """The log of one shard of a source; hosts open the same by path."""
        return BoundaryLog(self.storage, source_name, shard)

    def commits(self, stage: str) -> CommitLog:
        """The log of a sink's progress."""
        if stage not in self._commits:
            self._commits[stage] = CommitLog.of(self.storage, f"commits/{stage}.log")
        return self._commits[stage]

    def delivered(self, stage: str) -> CommitLog:
        """The log of what a sink on the driver has handed over, for the thread that does it."""
        return self.commits(f"{stage}.delivered")

    def announce(self, driver: DriverAddress) -> None:
        """Say where the driver that holds the store can be reached, until it is closed."""
        if self.storage.directory is None:
            return  # who wants to reach it has its process id
        fresh = self.path / f"{DRIVER_FILE}.new"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(driver.to_json())
        fresh.replace(self.path / DRIVER_FILE)

    def close(self) -> None:
        """Close the files and let another driver have the store."""
        for log in self._commits.values():
            log.close()
        self._commits.clear()
        if self._release is not None:
            if self.storage.directory is not None:
                (self.path / DRIVER_FILE).unlink(missing_ok=True)
            self._release()
            self._release = None

    def _metadata(self) -> dict[str, Any] | None:
        path = f"{self.storage}/{_METADATA}"
        try:
            metadata = json.loads(self.storage.read(_METADATA))
            if metadata["format"] != _FORMAT:
                raise SettingsError(
                    f"{path} has format {metadata['format']}, this version of Penstock reads "
                    f"{_FORMAT}; use the version that wrote it, or a new checkpointLocation"
                )
            if not (isinstance(metadata["id"], str) and isinstance(metadata["stages"], dict)):
                raise ValueError("the id or the stages are missing")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"{path} is damaged ({error}); restore it, or give a new checkpointLocation",
                path=path,
            ) from error
        return metadata


def user_name(stage: str) -> str:
    """The name of a sink as the user gave it; a committer goes by its writer's."""
    return stage.removesuffix("_commit")


def _changes(kept: Mapping[str, Any], name: str, wanted: Mapping[str, Any]) -> list[str]:
    """What is different, in words."""
    changes = []
    if kept["name"] != name:
        changes.append(f"the flow was named {kept['name']!r}, now {name!r}")
    stages = kept["stages"]
    changes += [f"stage {stage!r} is gone" for stage in stages if stage not in wanted]
    for stage, now in wanted.items():
        before = stages.get(stage)
        if before is None:
            changes.append(f"stage {stage!r} is new")
            continue
        for what in ("kind", "shards"):
            if before[what] != now[what]:
                changes.append(f"stage {stage!r} had {what} {before[what]}, now {now[what]}")
        changes += _column_changes(stage, before.get("columns", {}), now["columns"])
    return changes


def _moved(before: Mapping[str, str | None], wanted: Mapping[str, Any]) -> list[str]:
    """The stages that are at another place than they were."""
    return [
        stage
        for stage, now in wanted.items()
        if before.get(stage) and now["target"] and before[stage] != now["target"]
    ]


def _column_changes(stage: str, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    changes = [
        f"stage {stage!r}: column {column!r} is gone" for column in before if column not in now
    ]
    for column, kind in now.items():
        if column not in before:
            changes.append(f"stage {stage!r}: column {column!r} is new")
        elif before[column] != kind:
            changes.append(f"stage {stage!r}: column {column!r} was {before[column]}, now {kind}")
    return changes
