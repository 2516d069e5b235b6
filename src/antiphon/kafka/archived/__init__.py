"""Records that left their logs for the archive, for Kafka's consumers (decision 0048)."""
