"""What a task's process has to load: Spark starts new ones all the time."""

import subprocess
import sys

READ_AND_WRITE = """
import sys
import numpy as np
import pyarrow as pa
import antiphon.spark.source, antiphon.spark.read.log_reader
from antiphon.records.arrow import array_of, texts
from antiphon.records.arrow_encode import BatchEncoder, shards_by_key
from antiphon.records.builder import build_batch
from antiphon.records.changes import VERSION
from antiphon.spark.read import columns
from antiphon.spark.schema import arrow_schema, table_schema, topic_schema

assert "numba" not in sys.modules, "kernels are loaded when there are rows"
keys = texts(["a", "b"])
times = array_of(np.array([1, 2]), pa.timestamp("us", "UTC"))
rows = pa.RecordBatch.from_arrays([keys, keys, times], names=["key", "value", "timestamp"])
encoder = BatchEncoder(2, 10, 1000)
encoder.add(rows, shards_by_key(keys, 2, table=False), 0)
change = build_batch([(b"k", b"v", [("v", VERSION.pack(1, 0, 2, 3))], 5)])
for batch in [made.batch for made in encoder.rest()] + [change]:
    place = [memoryview(batch)], 0, 9, ("t", 0)
    columns.log_rows(*place, arrow_schema(topic_schema(include_headers=True)))
    changes = columns.change_rows(*place, arrow_schema(table_schema()))
assert changes.num_rows == 1
print(*sorted({"numba", "pandas"} & set(sys.modules)))
"""


def test_rows_are_moved_without_pandas() -> None:
    done = subprocess.run(
        (sys.executable, "-c", READ_AND_WRITE), capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["numba"]
