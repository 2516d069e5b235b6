"""The archive: old records as Parquet files on any file system, and a catalog of them in the cluster.

Reading needs no Spark: `format`, `places`, `digest`, `files` and `writer` know files and rows of the catalog, `reading`
goes on from the archive to the log. `catalog` reads and writes the catalog over a blocking connection. Only `job/`, which
moves records here, imports Spark.
"""
