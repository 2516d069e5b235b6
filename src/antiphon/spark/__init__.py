"""The Spark data source, sinks and jobs."""
