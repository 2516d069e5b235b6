"""One Antiphon node in the place of the broker that kafka-python's fixtures start: `python -m tests.interop.broker FILE`.

FILE is what their fixture made of `PROPERTIES`: the port, the transport, the SASL mechanism, the user of its JAAS settings.
The node says `ready` when it serves.
"""

import re
import sys
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

from antiphon.node.config import NodeConfig
from antiphon.security.settings import Security, Tls
from antiphon.server.first_user import write_first_user
from antiphon.server.process import run_node
from tests.interop.nodes import config_of_one

PROPERTIES: Final = """port={port}
transport={transport}
mechanism={sasl_mechanism}
partitions={partitions}
folder={tmp_dir}
ssl={ssl_dir}
jaas={jaas_config}
"""
COMMAND: Final = """security_protocol={transport}
sasl_mechanism={sasl_mechanism}
jaas={jaas_config}
"""


def properties_of(file: Path) -> dict[str, str]:
    """Name and value of each line."""
    pairs = (line.partition("=") for line in file.read_text().splitlines() if line)
    return {name: value for name, _, value in pairs}


def user_of(jaas: str) -> tuple[str, str]:
    """Name and password in JAAS settings."""
    found = re.search(r'username="([^"]*)" password="([^"]*)"', jaas)
    return ("", "") if found is None else (found[1], found[2])


def unpack(keystore: Path, folder: Path) -> None:
    """Certificate and key of a Java keystore, as it is made today (PKCS 12), in PEM."""
    key, certificate, others = pkcs12.load_key_and_certificates(keystore.read_bytes(), b"foobar")
    assert key is not None
    chain = [one for one in (certificate, *others) if one is not None]
    (folder / "node.pem").write_bytes(b"".join(one.public_bytes(Encoding.PEM) for one in chain))
    (folder / "node.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def config_of(file: Path) -> NodeConfig:
    """A node that does what the properties say; its files are beside them."""
    said = properties_of(file)
    folder = Path(said["folder"]) / "node"
    folder.mkdir(mode=0o700, exist_ok=True)
    security = Security()
    if said["transport"].startswith("SASL"):
        user, password = user_of(said["jaas"])
        write_first_user(folder / "first-user", user, password)
        security.authentication, security.first_user = True, "first-user"
        security.super_users, security.sasl_mechanisms = [f"User:{user}"], [said["mechanism"]]
    if said["transport"].endswith("SSL"):
        unpack(Path(said["ssl"]) / "kafka.server.keystore.jks", folder)
        security.tls = Tls("node.pem", "node.key")
    return config_of_one(folder, "localhost", int(said["port"]), int(said["partitions"]), security)


if __name__ == "__main__":
    run_node(config_of(Path(sys.argv[1])), ready=lambda _joined: print("ready", flush=True))
