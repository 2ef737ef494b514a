"""Streaming, batch and iterative dataflow on Spark; every stage chooses how it survives failure."""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from penstock import errors
from penstock.api import functions
from penstock.api.flow import Flow, GroupedStream, Loop, Stream
from penstock.api.regimes import (
    Batch,
    Causal,
    Eager,
    Ephemeral,
    GlobalCheckpoint,
    Lazy,
    Replicated,
)
from penstock.api.vertex import Vertex
from penstock.core.time import Time
from penstock.expressions import Column

if _TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Batch",
    "Causal",
    "Column",
    "Eager",
    "Ephemeral",
    "Flow",
    "GlobalCheckpoint",
    "GroupedStream",
    "Lazy",
    "Loop",
    "Replicated",
    "Stream",
    "Time",
    "Vertex",
    "errors",
    "functions",
    "localSession",
]

__version__ = _version("penstock")


def localSession(
    appName: str = "penstock", hosts: int | None = None, **options: _Any
) -> SparkSession:
    """A local SparkSession with settings that suit flows: task slots for ``hosts``, quick restarts.

    ``options``: ``master`` for another master, ``conf`` for Spark settings that win over these.
    """
    from penstock.engine.spark.session import local_session

    return local_session(appName, hosts, **options)
