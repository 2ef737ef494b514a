"""The public names: listed, importable, documented."""

import inspect
from types import ModuleType

import penstock


def export_problems(module: ModuleType) -> list[str]:
    """What is wrong with a module's ``__all__``, one line each."""
    listed = list(getattr(module, "__all__", []))
    problems = [] if listed else [f"{module.__name__} has no __all__"]
    problems += [
        f"{name} is listed twice" for name in sorted(set(listed)) if listed.count(name) > 1
    ]
    for name in listed:
        try:
            value = getattr(module, name)
        except (AttributeError, ImportError) as error:
            problems.append(f"{name} is listed but not there: {error}")
            continue
        if (inspect.isclass(value) or callable(value)) and not (value.__doc__ or "").strip():
            problems.append(f"{name} has no docstring")
    for name, value in vars(module).items():
        hidden = name.startswith("_") or inspect.ismodule(value) or name in {"annotations"}
        if not hidden and name not in listed:
            problems.append(f"{name} is public but not listed")
    return problems


def test_public_names_are_listed_importable_and_documented() -> None:
    assert export_problems(penstock) == []


def test_a_bad_module_is_found() -> None:
    module = ModuleType("bad")
    module.__dict__.update(
        __all__=["there", "gone", "there"],
        there=type("there", (), {}),
        extra=lambda: None,
        _private=1,
        inspect=inspect,
    )
    assert export_problems(module) == [
        "there is listed twice",
        "there has no docstring",
        "gone is listed but not there: module 'bad' has no attribute 'gone'",
        "there has no docstring",
        "extra is public but not listed",
    ]


def test_a_module_without_a_list_is_found() -> None:
    assert export_problems(ModuleType("empty")) == ["empty has no __all__"]
