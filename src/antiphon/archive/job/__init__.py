"""The job that moves old records to the archive; it runs on Spark."""
