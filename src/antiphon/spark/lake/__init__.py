"""Lake tables as targets of jobs: Delta Lake, Iceberg and Parquet, written exactly once."""
