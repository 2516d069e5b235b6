"""The Kafka door: Kafka's wire protocol over the node's shards."""
