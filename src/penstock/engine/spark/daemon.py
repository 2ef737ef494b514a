"""The process that forks Penstock's Python workers: PySpark's own daemon, warmed up.

Spark runs ``python -m <spark.python.daemon.module>`` once per executor and asks it to fork a worker
for each task. Two things make a fork ready sooner: PySpark is imported from the installed package
rather than from the ``pyspark.zip`` that Spark puts first on the path (modules in a zip cannot be
cached as bytecode files and are looked up slowly), and what every host needs is imported here,
once, before the fork.

Only imports happen here. A process that has *used* Flight, or started Arrow's threads, must not
fork: the child would hang.
"""

import importlib
import importlib.util
import os
import sys

PRELOADED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.flight",
    "pyspark.worker",
    "penstock.engine",
)


def drop_zips(path: list[str]) -> list[str]:
    """``path`` without Spark's zips of PySpark and Py4J.

    >>> drop_zips(["/spark/lib/pyspark.zip", "/spark/lib/py4j-0.10.9.9-src.zip", "/app"])
    ['/app']
    """
    return [entry for entry in path if not _is_spark_zip(entry)]


def _is_spark_zip(entry: str) -> bool:
    name = os.path.basename(entry)
    return name == "pyspark.zip" or (name.startswith("py4j-") and name.endswith("-src.zip"))


def _use_installed_pyspark() -> None:
    zipped = sys.path
    sys.path = drop_zips(zipped)
    importlib.invalidate_caches()
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("py4j") is None:
        sys.path = zipped  # the executor's Python has no PySpark of its own


def main() -> None:
    """Warm up, then be PySpark's daemon."""
    _use_installed_pyspark()
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError as error:  # a worker that needs it will say so, to the user
            print(f"penstock: not preloaded: {name}: {error}", file=sys.stderr)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
