"""The protocols: pure state machines, without I/O, clocks, randomness or threads."""
