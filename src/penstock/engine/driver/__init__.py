"""The driver: performs the decisions of the control machines, and serves the query handle."""
