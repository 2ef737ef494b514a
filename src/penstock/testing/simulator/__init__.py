"""A deterministic simulator of causal recovery: real machines, simulated clock, network and store."""
