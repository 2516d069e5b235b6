"""Options for the Java processes of tests, which live for seconds: compile little, load Spark's classes from an archive.

Half of what a short driver computes is reading, checking and linking classes. Java can keep them as they are in its memory.
`make test` has the archive made once (`python -m tests.spark.quick_java FILE`). Without it, or where Java or Spark are other
ones by now, Java loads the classes as always.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
_COMPILE_LITTLE: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Spark's launcher reads what another Java prints, so nothing about archives may be printed.
_SAY_NOTHING: Final = "-Xshare:auto -Xlog:disable"

QUICK_START: Final = f"{_COMPILE_LITTLE} -XX:SharedArchiveFile={ARCHIVE} {_SAY_NOTHING}"
"""For JDK_JAVA_OPTIONS."""

# Spark's own choice runs `chmod` and `readlink` as processes for each file of a checkpoint, a dozen of them an epoch.
_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

QUICK_DRIVER: Final = f"{QUICK_START} -Dspark.sql.streaming.checkpointFileManagerClass={_CHECKPOINTS}"
"""For JDK_JAVA_OPTIONS of a driver whose checkpoints are on this machine."""

# What most drivers here do: a Python source, a stream with a checkpoint, an aggregation, a join, Parquet, a plan as text.
_DRIVER: Final = """
import sys
import antiphon.spark
from pyspark.sql import functions as F

folder = sys.argv[1]
spark = antiphon.spark.session("classes", cores=2)
numbers = spark.range(100).withColumn("key", F.col("id") % 3)
numbers.write.parquet(folder + "/numbers")
(spark.readStream.schema("id bigint, key bigint").parquet(folder + "/numbers")
    .groupBy("key").agg(F.sum("id").alias("sum"))
    .writeStream.outputMode("complete").format("memory").queryName("sums")
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start().awaitTermination())
sums = spark.table("sums").join(numbers, "key").orderBy("id")
assert sums.count() == len(sums.collect()) == 100
assert spark.dataSource is not None
spark.stop()
"""


def make_archive(file: Path) -> None:
    """Run a driver once, and keep the classes that it loaded in `file`; what Java says is told where that fails."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        options = f"{_COMPILE_LITTLE} -XX:ArchiveClassesAtExit={made} {_SAY_NOTHING}"
        ran = subprocess.run(
            (sys.executable, "-c", _DRIVER, folder),
            env=os.environ | {"JDK_JAVA_OPTIONS": options},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode or not made.exists():
            sys.exit(f"Java made no archive of classes:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
        made.replace(file)


if __name__ == "__main__":
    make_archive(Path(sys.argv[1]))
