"""What outlives the driver: a flow's logs, checkpoints and description."""
