"""Delivery: guarantees, routing to roles, the ring of replicas, take-over and tuple records."""
