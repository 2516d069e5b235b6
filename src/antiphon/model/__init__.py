"""The domain model: topics, shards, nodes, and the requests among clients, nodes and coordinator. No IO, no bytes."""
