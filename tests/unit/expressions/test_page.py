"""The page on expressions says what is true."""

import doctest
import re
from pathlib import Path

from penstock.expressions.functions import FUNCTIONS

PAGE = Path(__file__).parents[3] / "docs" / "expressions.md"


def test_the_examples_are_right() -> None:
    result = doctest.testfile(
        str(PAGE),
        module_relative=False,
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert result.attempted > 10
    assert not result.failed


def test_every_function_is_listed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = text.partition("<!-- functions -->")[2].partition("<!-- end -->")[0]
    written = re.findall(r"`(\w+)`", listed)
    assert sorted(written) == sorted(name for name in FUNCTIONS if " " not in name)
