"""Commands in the documentation exist: subcommands, options and make targets."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

FENCE = re.compile(r"^```(?:bash|sh|shell|console)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def documented_commands(text: str) -> Iterator[list[str]]:
    """The simple commands in the shell blocks of a page, split into words."""
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            command: list[str] = []
            for word in [*lexer, ";"]:
                if set(word) <= set(";&|()<>"):
                    if command:
                        yield command
                    command = []
                elif command or not re.match(r"\w+=", word):  # settings before the command
                    command.append(word)


def make_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))


def make_problem(words: list[str], targets: set[str]) -> str | None:
    for word in words:
        if not word.startswith("-") and "=" not in word and word not in targets:
            return f"make has no target {word!r}"
    return None


def cli_problem(words: list[str], command: Any, name: str = "penstock") -> str | None:
    """Why ``words`` is no call of ``command`` (a Click command or group), if it is none."""
    options: dict[str, Any] = {"--help": None}
    for parameter in command.params:
        if parameter.param_type_name == "option":
            for spelling in (*parameter.opts, *parameter.secondary_opts):
                options[spelling] = parameter
    rest = list(words)
    positional = 0
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and word != "-":
            key, equals, _ = word.partition("=")
            if key not in options:
                return f"{name} has no option {key}"
            takes_value = options[key] is not None and not options[key].is_flag
            if takes_value and not equals and not (rest and rest.pop(0)):
                return f"{name} {key} needs a value"
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return f"{name} has no subcommand {word!r}"
            return cli_problem(rest, command.commands[word], f"{name} {word}")
        else:
            positional += 1
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    if positional > len(arguments) and not any(p.nargs == -1 for p in arguments):
        return f"{name} takes {len(arguments)} arguments, not {positional}"
    return None


def command_problems(text: str, cli: Any, targets: set[str]) -> list[str]:
    """The commands in a page that would fail, each with the reason."""
    problems = []
    for program, *words in documented_commands(text):
        problem = None
        if program == "make":
            problem = make_problem(words, targets)
        elif program in {"penstock", ".venv/bin/penstock"}:
            problem = cli_problem(words, cli)
        if problem:
            problems.append(f"{' '.join([program, *words])}: {problem}")
    return problems


def test_documented_commands_exist(root: Path) -> None:
    from penstock.cli.app import app

    cli = typer.main.get_command(app)
    targets = make_targets((root / "Makefile").read_text(encoding="utf-8"))
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted(root.glob("docs/**/*.md"))]
    problems = {
        str(page.relative_to(root)): found
        for page in pages
        if (found := command_problems(page.read_text(encoding="utf-8"), cli, targets))
    }
    assert problems == {}


@pytest.fixture
def example() -> Any:
    app = typer.Typer()

    @app.command()
    def demo(name: str, seconds: int = 20, json: bool = False) -> None: ...

    @app.command()
    def version() -> None: ...

    return typer.main.get_command(app)


def page(*commands: str) -> str:
    return "Text.\n\n```bash\n" + "\n".join(commands) + "\n```\n"


@pytest.mark.parametrize(
    "command",
    [
        "penstock demo ysb --seconds 15 --json  # comment",
        "$ penstock demo --no-json ysb --seconds=3 | head -1",
        "X=1 .venv/bin/penstock version && make test PYTEST_ARGS='-k x'",
        "penstock --help",
        "penstock demo \\\n  ysb",
        "git clone somewhere",
    ],
)
def test_good_commands_are_accepted(example: Any, command: str) -> None:
    assert command_problems(page(command), example, {"test"}) == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("penstock fly", "has no subcommand 'fly'"),
        ("penstock demo ysb --second 3", "has no option --second"),
        ("penstock demo ysb --seconds", "needs a value"),
        ("penstock version now", "takes 0 arguments, not 1"),
        ("true; make tests", "no target 'tests'"),
    ],
)
def test_bad_commands_are_found(example: Any, command: str, reason: str) -> None:
    [problem] = command_problems(page(command), example, {"test"})
    assert reason in problem


def test_only_shell_blocks_are_read(example: Any) -> None:
    text = "```python\npenstock fly\n```\nand `penstock fly`\n"
    assert command_problems(text, example, set()) == []
