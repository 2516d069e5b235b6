"""One shard's log on disk."""
