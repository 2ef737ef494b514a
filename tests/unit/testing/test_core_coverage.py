"""What is counted, and that what runs reach is told apart from what they do not."""

from pathlib import Path

from penstock.testing.core_coverage import (
    PROVED_ELSEWHERE,
    imported_core,
    measure,
    reached_by,
    statements,
)

ROOT = Path(__file__).parents[3]


def test_statements_are_those_inside_functions() -> None:
    module = "penstock.core.control.global_hold"
    path = ROOT / "src/penstock/core/control/global_hold.py"
    lines = path.read_text().splitlines()
    counted = {lines[line - 1].strip() for line in set(statements(module).values())}
    assert "self.every = every" in counted
    assert "return self.epoch" in counted
    assert not any(text.startswith(("class ", "import ", '"""')) for text in counted)


def test_runs_reach_what_they_drive() -> None:
    reached = reached_by(range(3))
    modules = {module for module, _ in reached}
    assert "penstock.core.control.recovery" in modules
    assert "penstock.core.plan.solve" not in modules
    assert all(module.startswith("penstock.core.") for module in modules)


def test_the_report_lists_what_is_never_reached() -> None:
    found = measure(seed=1, runs=2, processes=1)
    assert 0 < found["missed"] < found["statements"]
    assert 0.3 < found["share"] < 1
    assert 0 < found["share_of_all"] < found["share"]
    assert found["never_reached"].keys() <= set(imported_core())


def test_modules_that_are_proved_elsewhere_have_those_tests() -> None:
    for name, tests in PROVED_ELSEWHERE.items():
        assert any(module == name or module.startswith(f"{name}.") for module in imported_core())
        assert (ROOT / tests).exists(), tests
