"""RecordBatch v2: layout, validation, building and decoding."""
