"""Spark's classes as Java has them in memory, kept in a file: half of what a short session computes is loading them.

Java calls it class data sharing. It takes the file only where its own version and the jars are those that it was made with,
and loads classes as always otherwise. `keep_classes` makes the file, once for a Java and a Spark; sessions of
`antiphon.spark.session()` use one that is there.
"""

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from antiphon.errors import AntiphonError
from antiphon.spark.java import default_cache, find_java

OPTION: Final = "spark.driver.extraJavaOptions"
_TIMEOUT_S: Final = 600
_SAID_MAX: Final = 2_000  # characters of what Java said, where it made no file
# A file that is of another Java or Spark by now is passed over, and Java would say so on stdout.
_SAY_LITTLE: Final = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"

# What most programs do: a source in Python, streams with checkpoints, an aggregation, a join, Arrow, Parquet, JSON.
_DRIVER: Final = """
import sys
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
import antiphon.spark

class Few(DataSource):
    def schema(self): return "id bigint, key bigint"
    def streamReader(self, schema): return FewRows()

class FewRows(DataSourceStreamReader):
    def initialOffset(self): return {"at": 0}
    def latestOffset(self): return {"at": 3}
    def partitions(self, start, end): return [InputPartition(0)]
    def read(self, partition): yield from [(1, 1), (2, 0), (3, 1)]

folder, option, value = sys.argv[1:]
spark = antiphon.spark.session("classes", cores=2, config={option: value})
numbers = spark.range(100).withColumn("key", F.col("id") % 3)
numbers.write.parquet(folder + "/numbers")
spark.dataSource.register(Few)
files = spark.readStream.schema("id bigint, key bigint").parquet(folder + "/numbers")
for at, stream in enumerate((spark.readStream.format("Few").load(), files)):
    parsed = stream.selectExpr("from_json(concat('{\\"a\\":', id, '}'), 'a int').a as a", "key")
    query = (parsed.groupBy("key").agg(F.sum("a").alias("sum")).writeStream.outputMode("complete")
        .foreachBatch(lambda frame, epoch: frame.mapInArrow(lambda rows: rows, frame.schema).collect())
        .option("checkpointLocation", f"{folder}/checkpoint-{at}").start())
    query.processAllAvailable()
    query.stop()
assert numbers.join(numbers.groupBy("key").count(), "key").orderBy("id").count() == 100
spark.stop()
"""


def archive_of(home: Path, cache_dir: Path | None = None) -> Path:
    """Where the classes are kept for a Java (its home) and the Spark of this installation."""
    release = home / "release"
    said = release.read_text(errors="replace") if release.exists() else ""
    of = "\0".join((str(home.resolve()), said, version("pyspark"), os.environ.get("SPARK_HOME", "")))
    name = f"spark-classes-{hashlib.sha256(of.encode()).hexdigest()[:12]}.jsa"
    return (cache_dir or default_cache()) / name


def java_options(home: Path, given: str = "", cache_dir: Path | None = None) -> str:
    """Options for a driver's Java that has its classes kept, before those that were `given`; only these where it has not."""
    file = archive_of(home, cache_dir)
    if not file.exists():
        return given
    return f"{shlex.quote(f'-XX:SharedArchiveFile={file}')} {_SAY_LITTLE} {given}".strip()


def keep_classes(cache_dir: Path | None = None) -> Path:
    """Run a driver once and keep the classes that it loads, in place of those that were kept before; takes half a minute.

    Raises:
        JavaNotFoundError: there is no Java.
        AntiphonError: Java made no file; with what it said.
    """
    file = archive_of(find_java(cache_dir).home, cache_dir)
    file.unlink(
        missing_ok=True
    )  # the driver would take it, and Java keeps no classes that come from another such file
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        options = f"{shlex.quote(f'-XX:ArchiveClassesAtExit={made}')} {_SAY_LITTLE}"
        try:
            ran = subprocess.run(
                (sys.executable, "-c", _DRIVER, folder, OPTION, options),
                env={name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"},
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise AntiphonError(
                f"Spark did not end within {_TIMEOUT_S} s, so its classes could not be kept"
            ) from error
        if ran.returncode or not made.exists():
            raise AntiphonError(f"Java kept no classes: {ran.stdout[-_SAID_MAX:]}{ran.stderr[-_SAID_MAX:]}")
        made.replace(file)
    return file
