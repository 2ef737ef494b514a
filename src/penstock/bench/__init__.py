"""Benchmarks that ship with the package: what ``penstock bench`` runs."""
