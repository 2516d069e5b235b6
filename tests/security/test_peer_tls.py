"""Nodes that show each other certificates: they are a cluster, and who shows another authority's is not let in."""

import asyncio
import ssl
from pathlib import Path

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.model.requests import PROTOCOL_VERSION, CreateTopic, Hello
from antiphon.security.settings import Security, Tls, check_security
from antiphon.wire.frames import encode_message
from tests.node.real_nodes import Nodes, eventually, in_real_time
from tests.security.certificates import authority, client_files, server_files

KEY = "the key of all nodes, long enough it is"


def secured(directory: Path, count: int, key: str = "") -> Nodes:
    for node_id in range(count):
        folder = directory / f"node-{node_id}"
        tls = server_files(folder, name=f"node-{node_id}")
        (folder / "peer.key").write_text(KEY)
    peer_tls = Tls(tls.certificate, tls.key, tls.authority)
    return Nodes(directory, count, {}, security=Security(peer_tls=peer_tls, peer_key=key))


async def say_so(host: str, port: int, context: ssl.SSLContext) -> None:
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.writelines(encode_message(1, Hello(PROTOCOL_VERSION, "n", "test", 1, "i")))
    await reader.readexactly(1)


@pytest.mark.parametrize("key", ["", "peer.key"])
@in_real_time
async def test_nodes_with_certificates_are_a_cluster(tmp_path: Path, key: str) -> None:
    nodes = secured(tmp_path, 3, key)
    await nodes.start_all()
    await nodes.nodes[0].gateway.create_topic(CreateTopic("flights"))
    assert await nodes.append(nodes.nodes[0].gateway.topic("flights").shards[0].shard_id, b"x") == 1
    assert all(node.metrics.tls_handshakes >= 2 for node in nodes.nodes.values())
    assert all(node.metrics.tls_handshakes_failed == 0 for node in nodes.nodes.values())
    await nodes.close()


@in_real_time
async def test_who_shows_no_certificate_of_the_authority_is_not_let_in(tmp_path: Path) -> None:
    nodes = secured(tmp_path, 1)
    await nodes.start_all()
    host, port = nodes.members[0].peer.split(":")
    for files in (None, client_files(tmp_path, "eve", "another authority")):
        context = ssl.create_default_context(cadata=authority().certificate.decode())
        if files is not None:
            context.load_cert_chain(*files)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await say_so(host, int(port), context)
    assert not nodes.nodes[0].network.accepted.newest
    await eventually(lambda: nodes.nodes[0].metrics.tls_handshakes_failed == 2)
    await nodes.close()


def test_certificates_of_nodes_need_their_authority() -> None:
    with pytest.raises(InvalidRequestError, match="authority"):
        check_security(Security(peer_tls=Tls("c.pem", "c.key")))
