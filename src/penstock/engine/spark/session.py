"""Makes the SparkSession that Penstock owns when the user brings none.

Decides the settings that suit never-ending tasks beside DataFrame jobs: fair scheduling, no
speculation, no console progress over a live display, Python workers from a warmed-up daemon. Never
touches a session that exists already: nothing of the user's is overridden, and what the user passes
in ``conf`` wins over what stands here.
"""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.engine.spark.java import find_java
from penstock.errors import SessionError

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
SPARE_SLOTS = 2
"""One for DataFrame stages, one for a new host while Spark still counts a dead one's slot."""

MINIMUM_SLOTS = 6
DAEMON_MODULE = "penstock.engine.spark.daemon"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

_EVERYWHERE = {
    "spark.scheduler.mode": "FAIR",
    "spark.speculation": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.locality.wait": "0s",  # a host is at home anywhere
    "spark.python.worker.reuse": "false",  # a host's process is its own, and ends with it
    "spark.python.task.killTimeout": "100ms",
    "spark.python.worker.faulthandler.enabled": "true",  # says by what signal a host crashed
    # One thread a host for each library that would start one per core.
    "spark.executorEnv.OMP_NUM_THREADS": "1",
    "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
    "spark.executorEnv.POLARS_MAX_THREADS": "1",
}

_ON_THIS_MACHINE = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # Elsewhere the executors' Python need not have Penstock installed: it may travel with the job.
    "spark.python.daemon.module": DAEMON_MODULE,
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
}


def default_master(hosts: int | None) -> str:
    """A local master with slots for ``hosts`` hosts (one per core if not given) and the spare ones.

    >>> default_master(8)
    'local[10]'
    """
    wanted = os.cpu_count() or 1 if hosts is None else hosts
    return f"local[{max(MINIMUM_SLOTS, wanted + SPARE_SLOTS)}]"


def is_on_this_machine(master: str) -> bool:
    """Whether every process of that master's cluster runs here, and loopback will do.

    >>> [is_on_this_machine(master) for master in ("local[4]", "spark://127.0.0.1:7077", "yarn")]
    [True, True, False]
    """
    return master.startswith(("local", "spark://127.", "spark://localhost:"))


def settings(
    app_name: str, hosts: int | None, master: str | None, conf: Mapping[str, str] | None
) -> dict[str, str]:
    """The Spark settings of :func:`local_session`, as data."""
    chosen = master or default_master(hosts)
    return {
        "spark.app.name": app_name,
        "spark.master": chosen,
        **_EVERYWHERE,
        **(_ON_THIS_MACHINE if is_on_this_machine(chosen) else {}),
        **(conf or {}),
    }


def local_session(
    app_name: str = "penstock",
    hosts: int | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A new SparkSession, made for flows.

    ``hosts`` is the number of hosts that the local master shall have slots for; ``master`` names
    another master instead; ``conf`` holds Spark settings that win over Penstock's.

    Raises :class:`~penstock.errors.JavaNotFoundError` when there is no Java that Spark can run on,
    and :class:`~penstock.errors.SessionError` when this process has a session already: start the
    flow on that one, or stop it first.
    """
    active = SparkContext._active_spark_context
    if active is not None:
        raise SessionError(
            "this process has a Spark session already (application"
            f" {active.appName!r} on {active.master}): start the flow on that"
            " one, or stop it first",
            master=active.master,
        )
    wanted = settings(app_name, hosts, master, conf)
    _prepare_environment(wanted["spark.master"])
    builder = SparkSession.builder
    for key, value in wanted.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _prepare_environment(master: str) -> None:
    java = find_java()
    stated = os.environ.get("JAVA_HOME")
    if stated and str(java.home) != stated:
        logger.warning("JAVA_HOME=%s cannot run Spark; using %s", stated, java)
    os.environ["JAVA_HOME"] = str(java.home)
    if is_on_this_machine(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        # Spark would take whatever python3 is first on the path, not the one that runs this.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
