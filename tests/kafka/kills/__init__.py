"""All of Kafka's clients for Python at work at the same time while nodes are killed, and what judges it."""
