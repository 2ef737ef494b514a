"""Flows that show what Penstock does, each with a check of its own results."""
