"""Causal recovery: dense times, tree clocks, diffs, logs, replay and the recovery planner."""
