"""Tests of one shard's log on disk."""
