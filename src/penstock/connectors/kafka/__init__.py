"""Kafka as a source and as a sink; needs the extra ``kafka``."""
