"""Causal recovery: dense times, positions, diffs, logs, replay and the recovery planner."""
