"""``penstock run``: a flow from a user's module, or from a topology file."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from typing import Any

from penstock.api.flow import Flow
from penstock.cli.live import watch
from penstock.cli.output import print_json
from penstock.engine.settings import RunSettings
from penstock.engine.spark.session import local_session
from penstock.errors import SettingsError, TopologyError
from penstock.importing import find, users_code
from penstock.planning.explain import draw, explain
from penstock.planning.physical import physical_plan
from penstock.terminal import stderr
from penstock.topology import load_topology

__all__ = ["check_target", "explain_target", "load_flow", "parse_settings", "run_target"]


def run_target(
    target: str, settings: Sequence[str], seconds: float | None, master: str | None, json: bool
) -> None:
    """Run a flow until it ends, the time is up, or Ctrl-C."""
    flow, options, conf = _load(target, settings)
    spark = local_session(f"penstock run {flow.name}", options.get("hosts"), master, conf)
    try:
        query = flow.start(spark, **options)
        try:
            watch(query, seconds, quiet=json)
        except KeyboardInterrupt:
            stderr.print("stopping ...")
        finally:
            query.stop()
        error = query.exception()
        if error is not None:
            raise error
        progress = query.lastProgress
        if json:
            print_json(dict(progress or {}))
        elif progress is not None:
            stderr.print(f"{progress.numInputRows:,} rows, last epoch {progress.batchId}")
    finally:
        spark.stop()


def check_target(target: str, settings: Sequence[str], json: bool) -> None:
    """Say what a flow is made of, or everything that is wrong with it, without running it."""
    try:
        flow, options, _ = _load(target, settings)
    except TopologyError as error:
        if not json:
            raise
        problems = error.parameters.get("problems", [{"message": error.message}])
        print_json({"valid": False, "problems": problems})
        sys.exit(2)
    plan = physical_plan(flow, options.get("parallelism") or options.get("hosts") or 1)
    replicas = {one.name: chain.shards for chain in plan.chains for one in chain.stages}
    promised = flow.guarantees(options.get("guarantee", "exactly-once"))
    if json:
        stages = [
            {
                "name": stage.name,
                "kind": stage.operator.kind,
                "input": [source.stage.name for source in stage.inputs],
                "replicas": replicas.get(stage.name, 1),
                "guarantee": promised[stage.name],
                "columns": [str(one.name) for schema in stage.outputs for one in schema],
            }
            for stage in flow.stages
        ]
        print_json({"valid": True, "name": flow.name, "options": options, "stages": stages})
        return
    print(explain(flow))
    for name, guarantee in promised.items():
        stderr.print(f"{name}: {guarantee}", highlight=False)


def explain_target(target: str, settings: Sequence[str], picture: str | None) -> None:
    """Print a flow's stages, and the nodes and paths that they become; draw them if asked to."""
    flow, options, _ = _load(target, settings)
    print(explain(flow, options.get("parallelism") or options.get("hosts") or 2))
    if picture is not None:
        draw(flow, picture)


def _load(target: str, settings: Sequence[str]) -> tuple[Flow, dict[str, Any], dict[str, str]]:
    """A flow, options of start() and Spark's configuration; all checked before Spark starts."""
    options, conf = parse_settings(settings)
    RunSettings.checked(options)
    if not target.endswith(".toml"):
        return load_flow(target), options, conf
    topology = load_topology(target)
    options, conf = topology.options | options, topology.conf | conf
    RunSettings.checked(options)
    return topology.flow, options, conf


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
    if not target.rpartition(":")[0]:
        raise SettingsError(
            f"{target!r}: write it as MODULE:FLOW, such as my_flows:views, or give a .toml file"
        )
    found, module = find(target)
    with users_code(target):
        flow = found() if callable(found) else found
    if not isinstance(flow, Flow):
        raise SettingsError(f"{target!r} is a {type(flow).__name__}, not a penstock.Flow")
    flow.modules.append(module)
    return flow
