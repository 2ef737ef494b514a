"""A deterministic simulator of replicas: delivery, ring, take-over; faults from a seed."""
