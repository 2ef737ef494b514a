"""Things of the user's by name: ``package.module:name`` or ``path/to/file.py:name``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import SettingsError
from penstock.expressions.suggest import nearest

__all__ = ["find", "module_of"]


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
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise SettingsError(f"cannot import {where}: {error}") from error


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
    spec.loader.exec_module(module)
    return module
