"""Mutants of the protocols: each leaves out one thing, and a simulator must notice."""
