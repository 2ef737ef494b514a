"""From the stages that a user wrote to the nodes that run."""
