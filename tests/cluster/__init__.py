"""Tests on a real standalone cluster."""
