"""Write the list in docs/functions.md from the table: ``python scripts/functions_page.py``."""

from pathlib import Path

from penstock.expressions.functions import FUNCTIONS
from penstock.expressions.signatures import GROUPS, Signature

PAGE = Path(__file__).resolve().parents[1] / "docs" / "functions.md"
START, END = "<!-- functions -->\n", "<!-- end -->\n"
NOTES = {
    "any_value": "the least value",
    "approx_count_distinct": "exact, whatever `rsd` says",
    "approxCountDistinct": "exact, whatever `rsd` says",
    "approx_percentile": "exact, whatever `accuracy` says",
    "percentile_approx": "exact, whatever `accuracy` says",
    "array_sort": "without a comparator",
    "collect_list": "sorted: Spark promises no order",
    "collect_set": "sorted: Spark promises no order",
    "array_agg": "sorted: Spark promises no order",
    "conv": "constant bases; more than 64 bits are an error",
    "first": "by the event time of `withWatermark`",
    "first_value": "by the event time of `withWatermark`",
    "last": "by the event time of `withWatermark`",
    "last_value": "by the event time of `withWatermark`",
    "listagg": "sorted",
    "listagg_distinct": "sorted",
    "string_agg": "sorted",
    "string_agg_distinct": "sorted",
    "max_by": "of equal ones, the greatest value; without `k`",
    "min_by": "of equal ones, the least value; without `k`",
    "mode": "of equally frequent ones, the least",
    "percentile": "without `frequency`",
    "sequence": "of integers, and of dates day by day",
    "to_date": "patterns of `yyyy MM dd HH mm ss SSS SSSSSS XXX`",
    "to_timestamp": "patterns of `yyyy MM dd HH mm ss SSS SSSSSS XXX`",
}


def entry(signature: Signature) -> str:
    """One function: its signature, and what is different."""
    note = NOTES.get(signature.name)
    return f"- `{signature}`{': ' + note if note else ''}"


def listed() -> str:
    """The functions by what they are about."""
    lines, known = [], set()
    for group, table in GROUPS.items():
        signatures = [Signature(line) for line in table.strip().splitlines()]
        known |= {signature.sql for signature in signatures}
        lines += [f"## {group}", "", *[entry(signature) for signature in signatures], ""]
    names = sorted(name for name in FUNCTIONS if name.isidentifier() and name not in known)
    lines += ["## In SQL text only", "", ", ".join(f"`{name}`" for name in names), ""]
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with its list renewed."""
    head, rest = text.split(START)
    return head + START + listed() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
