"""Jars of a Java program, by Maven, once."""

import shutil
from pathlib import Path
from typing import Final

from tests.peers.servers.peer import UnavailableError, run_tool

GROUP: Final = "org.apache.kafka"
POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>antiphon.fetched</groupId>
  <artifactId>{artifact}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


def kafka_jars(artifact: str, version: str, jars: Path, group: str = GROUP) -> Path:
    """Make folder `jars`, with an artifact of Kafka's and all that it needs, and return it. Raises UnavailableError."""
    if shutil.which("java") is None:
        raise UnavailableError("java is not installed")
    if jars.is_dir():
        return jars
    part = jars.with_name(f"{jars.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (part / "pom.xml").write_text(POM.format(group=group, artifact=artifact, version=version))
    copy = ("dependency:copy-dependencies", "-DoutputDirectory=.", "-DincludeScope=runtime")
    run_tool(("mvn", "-q", "-B", *copy), part)
    part.rename(jars)
    return jars
