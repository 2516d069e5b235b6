"""kafka-python's pure Python record classes: an independent implementation to compare ours with."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its import uses a deprecated function of importlib
    from kafka.record.default_records import DefaultRecordBatch as OracleBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as OracleBuilder

__all__ = ["OracleBatch", "OracleBuilder"]
