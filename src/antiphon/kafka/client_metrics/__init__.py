"""Metrics that Kafka's clients push (KIP-714): who pushes what, and what a node keeps and shows of it."""
