"""The Kafka listener: Kafka's wire protocol over the node's shards."""
