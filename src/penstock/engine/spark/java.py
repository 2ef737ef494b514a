"""Finds the Java that Spark will run on, before Spark tries and fails in its own words.

Decides which installation to use: ``JAVA_HOME``, then ``java`` on the path, then Debian's folder of
Javas. Reads the ``release`` file that every JDK since 9 carries, and starts ``java`` only where
there is none, so that the answer (or the refusal) takes milliseconds. Never installs anything.

Run as a script it prints the home it found, or says on standard error what to install and exits
with 1. It uses the standard library alone, so that the set-up can run it before anything is
installed.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MINIMUM_VERSION = 17
REQUIRED_MODULE = "jdk.incubator.vector"
"""Spark starts the JVM with ``--add-modules`` of this; a jlinked runtime may lack it."""

PROBE_TIMEOUT_S = 5.0
"""For a Java without a ``release`` file, which must be started; slow on a busy machine."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation: where it is and what it offers.

    ``complete`` is false when the runtime is known to lack the module that Spark asks for.
    """

    home: Path
    version: int
    complete: bool = True

    @property
    def usable(self) -> bool:
        """Whether Spark can run on it."""
        return self.version >= MINIMUM_VERSION and self.complete

    def __str__(self) -> str:
        lack = "" if self.complete else f", without the module {REQUIRED_MODULE}"
        return f"{self.home} (Java {self.version}{lack})"


def major_version(text: str) -> int | None:
    """The major version in a version string: 17 for ``17.0.15+6``, 8 for ``1.8.0_392``."""
    match = re.match(r"(?:1\.)?(\d+)", text)
    return int(match.group(1)) if match else None


def inspect(home: Path) -> Java | None:
    """What is installed at ``home``, or None when it holds no working Java."""
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        release = ""
    stated = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    version = major_version(stated.group(1)) if stated else _ask(binary)
    if version is None:
        return None
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    complete = modules is None or REQUIRED_MODULE in modules.group(1).split()
    return Java(home, version, complete)


def _ask(binary: Path) -> int | None:
    try:
        answer = subprocess.run(
            [binary, "-version"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    stated = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return major_version(stated.group(1)) if stated else None


def installations(environ: Mapping[str, str]) -> Iterator[Java]:
    """Every Java there is, in the order of preference; one place is yielded once."""
    seen: set[Path] = set()
    for home in _homes(environ):
        if home not in seen:
            seen.add(home)
            java = inspect(home)
            if java is not None:
                yield java


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    root = Path(environ.get("PENSTOCK_JVM_ROOT", "/usr/lib/jvm"))
    if root.is_dir():
        # The oldest that is new enough is the one that Spark was tested with longest.
        found = [java for path in sorted(root.iterdir()) if (java := inspect(path.resolve()))]
        yield from (java.home for java in sorted(found, key=lambda java: (java.version, java.home)))


def refusal(environ: Mapping[str, str], found: Sequence[Java]) -> str:
    """One line that says what was found and what to install."""
    javas = ", ".join(str(java) for java in found) or "none"
    stated = environ.get("JAVA_HOME")
    if stated and Path(stated) not in [java.home for java in found]:
        javas += f"; JAVA_HOME={stated} holds no working bin/java"
    return (
        f"Spark needs Java {MINIMUM_VERSION} or newer (found: {javas}). Install a JRE"
        f" (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME to one."
    )


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark should use.

    Raises :class:`penstock.errors.JavaNotFoundError`, within milliseconds, when there is none that
    Spark can run on.
    """
    where = os.environ if environ is None else environ
    found = []
    for java in installations(where):
        if java.usable:
            return java
        found.append(java)
    from penstock.errors import JavaNotFoundError  # late: the set-up runs before the install

    raise JavaNotFoundError(refusal(where, found))


def _main() -> int:
    found = []
    for java in installations(os.environ):
        if java.usable:
            print(java.home)
            return 0
        found.append(java)
    print(refusal(os.environ, found), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(_main())
