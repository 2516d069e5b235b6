"""Apache Kafka from its jars: three processes, each a broker and a controller (KRaft)."""

import base64
import sys
import uuid
from pathlib import Path
from typing import Final

from tests.peers.servers.maven import kafka_jars
from tests.peers.servers.peer import (
    KAFKA,
    NODES,
    Processes,
    free_ports,
    listening,
    run_tool,
)

VERSION: Final = "4.3.1"
# What Kafka's own start scripts give a broker.
JVM: Final = (
    "java", "-server", "-Xms1G", "-Xmx1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip


class Kafka:
    """Three nodes with the settings that Kafka's example file has, replication 3, and what is given beside those."""

    def __init__(self, name: str, title: str, beside: dict[str, str] | None = None) -> None:
        self.name = name
        self.title = title
        self._beside = beside or {}
        said = "".join(f", {key}={value}" for key, value in self._beside.items())
        self.settings = f"{VERSION} on KRaft, heap 1 GiB a node; replication 3, min.insync.replicas=2{said}"
        self.clients: dict[str, tuple[str, ...]] = {
            KAFKA: (sys.executable, "-m", "tests.peers.clients.kafka")
        }
        self.lacks: dict[str, str] = {}
        self._jars = Path()

    def get(self, cache: Path) -> None:
        """Kafka's jars, by Maven, once."""
        self._jars = kafka_jars("kafka_2.13", VERSION, cache / f"kafka-{VERSION}")

    def start(self) -> Processes:
        """Three nodes, each of which knows of the three."""
        ports = free_ports(2 * NODES)
        brokers, controllers = ports[:NODES], ports[NODES:]
        cluster_id = base64.urlsafe_b64encode(b"\1" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        path = ("-cp", f"{self._jars}/*")
        with Processes(self.name) as servers:
            for node in range(NODES):
                file = servers.dir / f"{node}.properties"
                found = self._properties(node, brokers, controllers, servers.dir)
                file.write_text("".join(f"{key}={value}\n" for key, value in found.items()))
                tool = (
                    "kafka.tools.StorageTool",
                    "format",
                    "--cluster-id",
                    cluster_id,
                    "--config",
                    str(file),
                )
                run_tool(("java", *path, *tool), servers.dir, 60.0)
            for node in range(NODES):
                servers.start((*JVM, *path, "kafka.Kafka", str(servers.dir / f"{node}.properties")))
            servers.wait_until(lambda: all(listening(port) for port in brokers) and self._together(brokers))
            servers.addresses[KAFKA] = _addresses(brokers)
        return servers

    def _properties(
        self, node: int, brokers: list[int], controllers: list[int], where: Path
    ) -> dict[str, str]:
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers))
        return {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "listeners": f"PLAINTEXT://127.0.0.1:{brokers[node]},CONTROLLER://127.0.0.1:{controllers[node]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{brokers[node]}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "log.dirs": str(where / f"data-{node}"),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "group.initial.rebalance.delay.ms": "0",
            **self._beside,
        }

    def _together(self, brokers: list[int]) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            known = AdminClient({"bootstrap.servers": _addresses(brokers), "log_level": 2}).list_topics(
                timeout=2.0
            )
        except KafkaException:
            return False
        return len(known.brokers) == NODES


def _addresses(ports: list[int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)
