"""Flows of replicas in the simulator: delivery, rings, take-over, reinstatement."""
