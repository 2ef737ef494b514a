"""The command line: ``penstock demo``, ``run``, ``explain``, ``bench``, ``plan``, ``version``.

Every command has ``--help`` and, where it has results, ``--json``: one object on standard output,
keys with their unit; everything else goes to standard error.  Exit status: 0 done, 1 the flow
failed or a check did not hold, 2 the command line or the input was wrong.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The entry point of the ``penstock`` command."""
    try:
        # Imports take a second: Ctrl-C then is no traceback from the middle of a library.
        from penstock.cli.app import app
        from penstock.cli.output import reporting_errors
    except KeyboardInterrupt:
        sys.exit(130)
    with reporting_errors():
        app(prog_name="penstock")
