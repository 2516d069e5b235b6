"""From the values of records to columns: JSON, Avro, Protobuf."""
