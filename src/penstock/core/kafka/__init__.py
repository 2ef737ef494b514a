"""What Kafka connectors decide: which offsets are read, also again, and what is committed when."""
