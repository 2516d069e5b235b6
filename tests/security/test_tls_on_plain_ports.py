"""What a node without TLS tells its operator, and its clients, of those who speak TLS to it."""

import asyncio

import structlog

from antiphon.node.config import Ports
from tests.node.in_process import KAFKA_PORT, NATIVE_PORT, cluster_of, in_virtual_time

HTTP_PORT = 7480
CLIENT_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(505)


@in_virtual_time
async def test_a_tls_handshake_on_a_plain_port_is_told_as_such() -> None:
    async with cluster_of(1, ports=Ports(NATIVE_PORT, KAFKA_PORT, -1, HTTP_PORT)):
        for port in (NATIVE_PORT, KAFKA_PORT, HTTP_PORT):
            with structlog.testing.capture_logs() as told:
                for _ in range(2):
                    reader, writer = await asyncio.open_connection("node-0", port)
                    writer.write(CLIENT_HELLO)
                    assert await reader.read() == b""
                    writer.close()
            reasons = [line["reason"] for line in told if "reason" in line]
            assert reasons
            assert all("TLS" in reason for reason in reasons)
            if port != KAFKA_PORT:
                assert len(reasons) == 1
