"""More connections of Kafka clients that have said hello and rest: their memory and CPU, and what another client notices."""

import asyncio
import socket
import struct
from contextlib import ExitStack
from typing import Final

import antiphon
import antiphon.aio
from antiphon.client.addresses import parse_address
from antiphon.tools.local_cluster import LocalCluster
from tests.scale.resting import Figures, at_rest, timed, value

TABLE: Final = "default"
API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
DESCRIPTORS_LEFT: Final = 200


def measure_connections(connections: int, seconds: float) -> Figures:
    """CPU and memory with so many connections, spread over three nodes; puts of 100 B, one at a time, beside them."""
    with LocalCluster.start() as cluster, ExitStack() as open_ones:
        nodes = [parse_address(node.kafka) for node in cluster.nodes.values()]
        sockets = [
            open_ones.enter_context(socket.create_connection(nodes[number % len(nodes)]))
            for number in range(connections)
        ]
        for one in sockets:
            one.sendall(API_VERSIONS)
        for one in sockets:
            if not one.recv(4):
                raise AssertionError("a node has closed one of the connections")
        return {**at_rest(cluster), **asyncio.run(_puts(cluster.native, seconds))}


async def _puts(servers: str, seconds: float) -> Figures:
    async with antiphon.aio.connect(servers) as db:
        table, data = db.table(TABLE), value(100)
        await table.put(b"warm", data)
        return await timed(lambda number: table.put(b"key-%d" % (number % 1000), data), 1, seconds)
