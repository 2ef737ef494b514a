"""Tests that kill, freeze and cut off the processes of flows on purpose."""
