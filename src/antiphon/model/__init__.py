"""What nodes, coordinator and clients speak of: topics, shards, nodes, and what they ask of each other. No IO, no bytes."""
