"""Things of the user's by name: ``package.module:name`` or ``path/to/file.py:name``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import PenstockError, SettingsError
from penstock.expressions.suggest import nearest

__all__ = ["find", "module_of", "users_code"]


def find(target: str, folder: Path | None = None) -> tuple[Any, ModuleType]:
    """What ``module:name`` names, and its module; names may have dots.

    ``folder`` is where files are looked for, and modules first: by default the current one.

    >>> find("json:JSONDecoder.decode")[0].__name__
    'decode'
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise SettingsError(f"{target!r}: write it as package.module:name, or path/to/file.py:name")
    module = module_of(where, folder)
    found: Any = module
    for part in name.split("."):
        names = [known for known in dir(found) if not known.startswith("_")]
        if not hasattr(found, part):
            raise SettingsError(f"{where} has no {name!r}{nearest(part, names)}".rstrip(";"))
        found = getattr(found, part)
    return found, module


def module_of(where: str, folder: Path | None = None) -> ModuleType:
    """Import a module by its name or from a file; its neighbours can be imported from then on."""
    folder = Path.cwd() if folder is None else folder
    try:
        if where.endswith(".py"):
            return _from_file(where, (folder / where).resolve())
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        with users_code(where):
            return importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise SettingsError(f"cannot import {where}: {error}") from error


@contextmanager
def users_code(where: str) -> Iterator[None]:
    """Code of the user's that runs while a flow is made: what it raises is shown from there on.

    Penstock's own errors say what is wrong by themselves, and pass with the place they came from.
    """
    try:
        yield
    except (PenstockError, ModuleNotFoundError) as error:
        if isinstance(error, PenstockError):
            error.parameters.setdefault("traceback", _users_frames(error))
        raise
    except Exception as error:
        raise SettingsError(
            f"{where} raised {type(error).__name__}: {error}", traceback=_users_frames(error)
        ) from error


def _users_frames(error: BaseException) -> str:
    """The traceback without the frames of Penstock and of the import system around it."""
    ours = str(Path(__file__).parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, "<frozen importlib"))
    ]
    place = traceback.format_exception_only(error)[:-1]  # of a SyntaxError
    return "".join(["Traceback (most recent call last):\n", *traceback.format_list(frames), *place])


def _from_file(where: str, path: Path) -> ModuleType:
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise SettingsError(f"there is no file {where}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    try:
        with users_code(where):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
