"""Certificates that are renewed on disk: each listener of a running node shows the new one to the next handshake."""

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from antiphon.security.authority import issue
from antiphon.security.settings import Security, Tls
from tests.node.real_nodes import Nodes, in_real_time
from tests.security.certificates import HOSTS, authority, put, server_files

PEERS = "the nodes' authority"


def peer_files(directory: Path) -> Tls:
    certificate, key = put(directory, "peer", issue(authority(PEERS), "node-0", HOSTS))
    (directory / "peers.pem").write_bytes(authority(PEERS).certificate)
    return Tls(certificate, key, "peers.pem", "required")


def renew(directory: Path, name: str, signer: str) -> bytes:
    """Put a new certificate and its key in the place of those that are there, the key first; returns the certificate."""
    made = issue(authority(signer), "node-0", HOSTS)
    for ending, content in ((".key", made.key), (".pem", made.certificate)):
        new = directory / f"{name}{ending}.new"
        new.write_bytes(content)
        os.replace(new, directory / f"{name}{ending}")
    return made.certificate


async def shown(address: str, context: ssl.SSLContext) -> bytes:
    """The certificate that a listener shows, which the context has to trust."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return found


def der(pem: bytes) -> bytes:
    """The first certificate of a file."""
    text = pem.decode()
    end = text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
    return ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) : end])


@pytest.mark.parametrize("renewed", ["clients", "peers"])
@in_real_time
async def test_each_listener_shows_a_renewed_certificate_without_a_restart(
    tmp_path: Path, renewed: str
) -> None:
    directory = tmp_path / "node-0"
    security = Security(tls=server_files(directory), peer_tls=peer_files(directory))
    nodes = Nodes(tmp_path, 1, {}, kafka=True, http=True, oxia=True, security=security)
    try:
        await nodes.start_all()
        meta = nodes.nodes[0].meta()
        of_clients = ssl.create_default_context(cafile=str(directory / "authority.pem"))
        of_oxia = ssl.create_default_context(cafile=str(directory / "authority.pem"))
        of_oxia.set_alpn_protocols(["h2"])
        of_peers = ssl.create_default_context(cafile=str(directory / "peers.pem"))
        of_peers.load_cert_chain(directory / "peer.pem", directory / "peer.key")
        listeners = {
            "native": (meta.native, of_clients),
            "kafka": (meta.kafka, of_clients),
            "http": (meta.http, of_clients),
            "oxia": (meta.oxia, of_oxia),
            "peer": (meta.peer, of_peers),
        }

        async def look() -> dict[str, bytes]:
            return {name: await shown(*how) for name, how in listeners.items()}

        before = await look()
        assert set(before.values()) == {
            der((directory / "server.pem").read_bytes()),
            der((directory / "peer.pem").read_bytes()),
        }
        if renewed == "clients":
            new, names = renew(directory, "server", "test authority"), {"native", "kafka", "http", "oxia"}
        else:
            new, names = renew(directory, "peer", PEERS), {"peer"}
        after = await look()
        assert after == {name: der(new) if name in names else before[name] for name in listeners}
    finally:
        await nodes.close()
