"""The process that forks Penstock's Python workers: PySpark's own daemon, warmed up.

Spark runs ``python -m <spark.python.daemon.module>`` once per executor and asks it to fork a worker
for each task. Two things make a fork ready sooner: PySpark is imported from the installed package
rather than from the ``pyspark.zip`` that Spark puts on the path (modules in an archive have no
cached bytecode, and its directory is read again in each worker), and what every host needs is
imported here, once, before the fork.

Only imports happen here. A process that has started threads, Arrow's included, must not
fork: the child would hang.
"""

import importlib
import importlib.util
import os
import re
import sys

PRELOADED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyspark.worker",
    "penstock.engine",
)


def drop_archives(path: list[str]) -> list[str]:
    """``path`` without the archives that Spark puts on it: PySpark, Py4J, Spark's own jar.

    >>> drop_archives(["/lib/pyspark.zip", "/lib/py4j-0.10.9.9-src.zip", "/app", "/app/mine.zip"])
    ['/app', '/app/mine.zip']
    """
    return [entry for entry in path if not _ARCHIVE.fullmatch(os.path.basename(entry))]


_ARCHIVE = re.compile(r"pyspark\.zip|py4j-.*-src\.zip|spark-core_.*\.jar")


def _use_installed_pyspark() -> None:
    given = sys.path
    sys.path = drop_archives(given)
    importlib.invalidate_caches()
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("py4j") is None:
        sys.path = given  # the executor's Python has no PySpark of its own
        return
    # A worker invalidates the import caches when it adds the job's files to the path, and a cached
    # archive would then read its whole directory again, in every worker.
    for archive in set(given) - set(sys.path):
        for entry in [key for key in sys.path_importer_cache if key.startswith(archive)]:
            del sys.path_importer_cache[entry]


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
