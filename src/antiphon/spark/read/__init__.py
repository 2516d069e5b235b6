"""Reading with Spark: what is asked, where shards begin and end, how ranges become rows."""
