"""Finding a Java for Spark, among stand-ins."""

import time
from pathlib import Path

import pytest

from penstock.engine.spark.java import Java, find_java, inspect, major_version
from penstock.errors import JavaNotFoundError, UsageError

MODULES = "java.base jdk.incubator.vector"


def install(home: Path, version: str, *, release: bool = True, modules: str = MODULES) -> Path:
    (home / "bin").mkdir(parents=True)
    script = f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n"
    (home / "bin" / "java").write_text(script)
    (home / "bin" / "java").chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def environ(tmp_path: Path, **settings: object) -> dict[str, str]:
    nowhere = {"PATH": str(tmp_path / "none"), "PENSTOCK_JVM_ROOT": str(tmp_path / "none")}
    return nowhere | {key: str(value) for key, value in settings.items()}


@pytest.mark.parametrize(
    ("text", "major"), [("17.0.15+6", 17), ("1.8.0_392", 8), ("21", 21), ("25-ea", 25), ("x", None)]
)
def test_major_version_of_old_and_new_styles(text: str, major: int | None) -> None:
    assert major_version(text) == major


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = install(tmp_path / "home", "21.0.1")
    other = install(tmp_path / "other", "17.0.1")
    found = find_java(environ(tmp_path, JAVA_HOME=home, PATH=other / "bin"))
    assert found == Java(home, 21)


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    old = install(tmp_path / "old", "1.8.0_392", release=False)
    new = install(tmp_path / "new", "17.0.1")
    assert find_java(environ(tmp_path, JAVA_HOME=old, PATH=new / "bin")).home == new


def test_a_link_on_the_path_is_followed_to_its_home(tmp_path: Path) -> None:
    home = install(tmp_path / "home", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java(environ(tmp_path, PATH=tmp_path / "bin")).home == home


def test_the_oldest_that_is_new_enough_is_taken_from_debians_folder(tmp_path: Path) -> None:
    for version in ("25", "11", "21", "17"):
        install(tmp_path / "jvm" / f"java-{version}", version)
    found = find_java(environ(tmp_path, PENSTOCK_JVM_ROOT=tmp_path / "jvm"))
    assert found.version == 17


def test_a_runtime_without_the_vector_module_is_refused(tmp_path: Path) -> None:
    home = install(tmp_path / "jlinked", "21.0.1", modules="java.base")
    with pytest.raises(JavaNotFoundError, match=r"without the module jdk\.incubator\.vector"):
        find_java(environ(tmp_path, JAVA_HOME=home))


def test_no_java_is_refused_within_a_second(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(UsageError, match=r"found: none.*openjdk-17-jre-headless"):
        find_java(environ(tmp_path))
    assert time.monotonic() - begun < 1


def test_a_java_that_hangs_is_asked_once_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.spark.java.PROBE_TIMEOUT_S", 0.5)
    home = install(tmp_path / "hung", "17", release=False)
    (home / "bin" / "java").write_text("#!/bin/sh\nexec sleep 30\n")
    begun = time.monotonic()
    with pytest.raises(JavaNotFoundError, match=r"holds no working bin/java"):
        find_java(environ(tmp_path, JAVA_HOME=home))
    assert time.monotonic() - begun < 1


def test_a_folder_without_java_is_none(tmp_path: Path) -> None:
    assert inspect(tmp_path) is None
