"""The set-up on machines that lack something, played with stand-ins for apt, Python and Java."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TOOLS = ("bash", "cat", "chmod", "cp", "dirname", "mkdir", "mktemp", "rm", "touch")

PYTHON = """\
#!/bin/bash
# Real for -c and -I; only pretends to make environments and to install.
echo "python $*" >> {log}
case "$1 $2" in
  "-c import venv, ensurepip") [ -z "$NO_ENSUREPIP" ] || exit 1 ;;
  "-m venv" | "-m virtualenv") mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
  "-m pip") ;;
  *) exec {python} "$@" ;;
esac
"""
APT_GET = """\
#!/bin/bash
echo "apt-get $*" >> {log}
if [[ $* == *jre-headless* ]]; then mkdir -p {jvm} && cp -r {spare} {jvm}/installed; fi
"""
APT_CACHE = """\
#!/bin/bash
[[ " $OFFERED " == *" $2 "* ]] && candidate=1 || candidate="(none)"
echo "$2:"; echo "  Candidate: $candidate"
"""


@dataclass
class Machine:
    """A folder that plays a machine: its path, its Javas, its log of what was called."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        source = Path(__file__).parents[2]
        for name in ("scripts/setup.sh", "src/penstock/engine/spark/java.py", "constraints.txt"):
            (self.repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, self.repository / name)
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
        base = getattr(sys, "_base_executable", sys.executable)
        self.program("python3", PYTHON.format(log=self.log, python=base))
        self.program("id", "#!/bin/bash\necho 1000\n")

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def log(self) -> Path:
        return self.folder / "calls.log"

    @property
    def calls(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def java(self, name: str, version: str) -> Path:
        """A stand-in for an installed Java that can only state its version."""
        home = self.folder / name
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").write_text(
            f"#!/bin/bash\necho 'openjdk version \"{version}\"' >&2\n"
        )
        (home / "bin" / "java").chmod(0o755)
        return home

    def debian(self, *, root: bool, offered: str = "openjdk-17-jre-headless") -> None:
        (self.folder / "debian_version").write_text("12\n")
        spare = self.java("spare", "17.0.1")
        jvm = self.folder / "jvm"
        self.program("apt-get", APT_GET.format(log=self.log, jvm=jvm, spare=spare))
        self.program("apt-cache", APT_CACHE)
        self.settings["OFFERED"] = offered
        if root:
            self.program("id", "#!/bin/bash\necho 0\n")

    def set_up(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "bash", "scripts/setup.sh"],
            cwd=self.repository,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={
                "PATH": str(self.bin),
                "HOME": str(self.folder),
                "PENSTOCK_DEBIAN_MARK": str(self.folder / "debian_version"),
                "PENSTOCK_JVM_ROOT": str(self.folder / "jvm"),
                **self.settings,
            },
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_python_and_java_are_all_it_needs(machine: Machine) -> None:
    machine.settings["JAVA_HOME"] = str(machine.java("jdk", "17.0.1"))
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert "setup: ready" in done.stderr
    assert "--constraint constraints.txt --editable .[dev]" in machine.calls
    assert os.access(machine.repository / ".venv/bin/python", os.X_OK)


@pytest.mark.parametrize("debian", [False, True])
def test_without_java_one_line_says_what_to_install(machine: Machine, debian: bool) -> None:
    if debian:
        machine.debian(root=False)
    begun = time.monotonic()
    done = machine.set_up()
    assert time.monotonic() - begun < 5
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "Spark needs Java 17 or newer" in line
    assert "openjdk-17-jre-headless" in line
    assert "apt-get" not in machine.calls
    assert not (machine.repository / ".venv").exists()


def test_an_old_java_counts_as_none(machine: Machine) -> None:
    machine.settings["JAVA_HOME"] = str(machine.java("jdk8", "1.8.0_392"))
    done = machine.set_up()
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer" in done.stderr


def test_a_new_java_in_debians_folder_makes_up_for_an_old_home(machine: Machine) -> None:
    machine.settings["JAVA_HOME"] = str(machine.java("jdk11", "11.0.2"))
    machine.java("jvm/java-21", "21.0.2")
    assert machine.set_up().returncode == 0


@pytest.mark.parametrize("offered", ["openjdk-17-jre-headless", "openjdk-21-jre-headless"])
def test_root_on_debian_gets_the_java_that_this_debian_has(machine: Machine, offered: str) -> None:
    machine.debian(root=True, offered=offered)
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert "apt-get update" in machine.calls
    assert f"--no-install-recommends {offered}\n" in machine.calls


def test_root_on_debian_is_told_when_apt_has_no_java(machine: Machine) -> None:
    machine.debian(root=True, offered="")
    done = machine.set_up()
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer" in done.stderr.splitlines()[-1]


def test_without_ensurepip_virtualenv_is_used_from_aside(machine: Machine) -> None:
    machine.settings["JAVA_HOME"] = str(machine.java("jdk", "17.0.1"))
    machine.settings["NO_ENSUREPIP"] = "1"
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert "--target" in machine.calls
    assert "python -m virtualenv" in machine.calls
    assert "python -m venv" not in machine.calls


def test_an_old_python_is_refused(machine: Machine) -> None:
    machine.program("python3", "#!/bin/bash\nexit 1\n")
    done = machine.set_up()
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr
