"""Lake tables as targets: Delta, Iceberg, Parquet."""
