"""The driver that ``penstock chaos --driver`` kills: the chaos flow in a process of its own.

    python -m penstock.bench.chaos_child FOLDER RATE ROWS ORIGIN_US

The same words start it again after a kill, and it goes on where it was.  It says on standard output
when Spark is up (``UP``), when the flow runs (``RUNNING``) and when it has come to its end
(``ENDED``).
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

from penstock.bench.chaos_flow import ChaosTables
from penstock.engine.spark.session import local_session

__all__ = ["HOSTS", "main"]

HOSTS = 3
EPOCH = "200 ms"
LINGER = "100 ms"
CHECKPOINT = "400 ms"


def main(folder: str, rate: str, rows: str, origin_us: str) -> None:
    """Run the flow, from wherever it is, to its end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with who started us
    spark = local_session("penstock chaos", hosts=HOSTS)
    print("UP", flush=True)
    tables = ChaosTables(float(rate), int(rows), Path(folder), int(origin_us))
    query = tables.flow.start(
        spark,
        hosts=HOSTS,
        parallelism=2,
        epochInterval=EPOCH,
        linger=LINGER,
        checkpointInterval=CHECKPOINT,
        checkpointLocation=str(Path(folder) / "checkpoint"),
    )
    print("RUNNING", flush=True)
    query.awaitTermination()
    print("ENDED", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
