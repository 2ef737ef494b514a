"""A node's machine: which inputs count, what is logged, how a restarted node replays."""
