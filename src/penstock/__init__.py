"""Streaming, batch and iterative dataflow on Spark; every stage chooses how it survives failure."""

from __future__ import annotations

from importlib.metadata import version as _version

from penstock import errors, functions
from penstock.core.time import Time
from penstock.flow import Flow, GroupedStream, Stream
from penstock.vertex import Vertex

__all__ = ["Flow", "GroupedStream", "Stream", "Time", "Vertex", "errors", "functions"]

__version__ = _version("penstock")
