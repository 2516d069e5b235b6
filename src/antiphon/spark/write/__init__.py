"""Writing with Spark: the sink, and one task's part of a write."""
