"""The life of a flow on hosts that fail: its start, its losses, its end.  Nodes are abstract."""
