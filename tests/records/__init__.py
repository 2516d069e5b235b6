"""Tests of RecordBatch v2: layout, building, decoding, entry ids."""
