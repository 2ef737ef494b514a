"""docs/functions.md lists the functions that there are."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_is_what_the_script_makes_of_the_table() -> None:
    written = (ROOT / "docs" / "functions.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "scripts" / "functions_page.py"))["page"](written)
    assert written == made, "run: python scripts/functions_page.py"
