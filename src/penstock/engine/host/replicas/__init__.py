"""Replicas in running flows: the machines of :mod:`penstock.core.delivery` with hands and feet."""
