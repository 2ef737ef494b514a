"""A deterministic simulator of causal recovery: real machines in a simulated world."""
