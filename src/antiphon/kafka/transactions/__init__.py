"""Transactions of Kafka's clients: the coordinator's shell, and what partitions and groups ask it."""
