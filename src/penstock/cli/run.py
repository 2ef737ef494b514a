"""``penstock run``: a flow from a user's module."""

from __future__ import annotations

import importlib
import importlib.util
import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle

from penstock.cli.live import watch
from penstock.cli.output import errors, print_json
from penstock.engine.settings import RunSettings
from penstock.engine.spark.session import local_session
from penstock.errors import SettingsError
from penstock.flow import Flow

__all__ = ["load_flow", "parse_settings", "run_target"]


def run_target(
    target: str, settings: Sequence[str], seconds: float | None, master: str | None, json: bool
) -> None:
    """Run a flow until it ends, the time is up, or Ctrl-C."""
    options, conf = parse_settings(settings)
    RunSettings.checked(options)  # before Spark takes its seconds to start
    flow = load_flow(target)
    spark = local_session(f"penstock run {flow.name}", options.get("hosts"), master, conf)
    try:
        query = flow.start(spark, **options)
        try:
            watch(query, seconds, quiet=json)
        except KeyboardInterrupt:
            errors.print("stopping ...")
        finally:
            query.stop()
        error = query.exception()
        if error is not None:
            raise error
        progress = query.lastProgress
        if json:
            print_json(dict(progress or {}))
        elif progress is not None:
            errors.print(f"{progress.numInputRows:,} rows, last epoch {progress.batchId}")
    finally:
        spark.stop()


def parse_settings(settings: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Split ``key=value`` settings into options of start() and Spark's configuration.

    >>> parse_settings(["hosts=3", "availableNow=true", "spark.ui.enabled=true"])
    ({'hosts': 3, 'availableNow': True}, {'spark.ui.enabled': 'true'})
    """
    options: dict[str, Any] = {}
    conf: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise SettingsError(f"--set {setting!r}: write it as key=value")
        if key.startswith("spark."):
            conf[key] = value
        else:
            try:
                options[key] = json_module.loads(value)
            except ValueError:
                options[key] = value
    return options, conf


def load_flow(target: str) -> Flow:
    """The flow that ``module:name`` or ``path/to/file.py:name`` names."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise SettingsError(f"{target!r}: write it as MODULE:FLOW, such as my_flows:views")
    module = _module(where)
    found = getattr(module, name, None)
    if found is None:
        raise SettingsError(f"{where} has no {name!r}")
    flow = found() if callable(found) else found
    if not isinstance(flow, Flow):
        raise SettingsError(f"{target!r} is a {type(flow).__name__}, not a penstock.Flow")
    cloudpickle.register_pickle_by_value(module)
    return flow


def _module(where: str) -> ModuleType:
    try:
        if where.endswith(".py"):
            path = Path(where).resolve()
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.exists():
                raise SettingsError(f"there is no file {where}")
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            sys.path.insert(0, str(path.parent))
            spec.loader.exec_module(module)
            return module
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise SettingsError(f"cannot import {where}: {error}") from error
