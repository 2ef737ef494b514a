"""The page on expressions says what is true."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "expressions.md"


def test_the_examples_are_right() -> None:
    result = doctest.testfile(
        str(PAGE),
        module_relative=False,
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert result.attempted > 10
    assert not result.failed
