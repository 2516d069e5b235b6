"""Whom the harness measures. A new peer is a class over `Peer` in a module here, and its line in `PEERS`."""

from typing import Final

from tests.peers.servers.antiphon_peer import Antiphon
from tests.peers.servers.go_peers import Etcd, Nats, Oxia
from tests.peers.servers.kafka_peer import Kafka
from tests.peers.servers.peer import Peer

PEERS: Final[dict[str, Peer]] = {
    peer.name: peer
    for peer in (
        Antiphon(),
        Kafka("kafka", "Kafka, as it comes"),
        Kafka("kafka-sync", "Kafka, flush.messages=1", {"log.flush.interval.messages": "1"}),
        Etcd(),
        Nats(),
        Oxia(),
    )
}
OURS: Final = "antiphon"
