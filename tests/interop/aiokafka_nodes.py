"""Nodes of Antiphon for aiokafka's tests, in a process of their own: `python -m tests.interop.aiokafka_nodes ORDER`.

ORDER is JSON: `folder`, `certificates`, `partitions`, `nodes` and the ports of Kafka's listeners, `plain`, `tls` and `sasl`.
So many nodes serve without TLS and logins. TLS and SASL are served by a node each, which has a cluster of its own. The
process says `ready`. Then it does what each line on its standard input says, a list of words such as `["grant", ...]`; it
answers `done`, or what went wrong.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from antiphon.node.config import NodeConfig
from antiphon.security.settings import Security, Tls
from antiphon.server.first_user import write_first_user
from tests.interop.nodes import config_of_one, single_node, start_nodes

ADMIN: Final = "admin"
USERS: Final = ("test", "test2")  # whose passwords are their names
# Kafka lets everybody do what no access control list speaks of, as their broker is set up. These say the same of who is
# logged in; to make a topic is for whom the cluster's list lets.
TOPIC_OPERATIONS: Final = (
    "READ",
    "WRITE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
)
EVERYBODY: Final = (
    *(("TOPIC", "*", operation) for operation in TOPIC_OPERATIONS),
    ("GROUP", "*", "ALL"),
    ("TRANSACTIONAL_ID", "*", "ALL"),
    ("BROKER", "kafka-cluster", "ALL"),
)


def _folder(order: dict[str, Any], name: str) -> Path:
    folder = Path(order["folder"]) / name
    folder.mkdir(mode=0o700)
    return folder


def tls_config(order: dict[str, Any]) -> NodeConfig:
    """A node that demands a client's certificate, with what their script made."""
    folder, made = _folder(order, "tls"), Path(order["certificates"])
    for name in ("server.crt", "server.key", "ca.crt"):
        (folder / name).write_bytes((made / name).read_bytes())
        (folder / name).chmod(0o600)
    security = Security(tls=Tls("server.crt", "server.key", "ca.crt", "required"))
    return config_of_one(folder, "127.0.0.1", order["tls"], order["partitions"], security)


def sasl_config(order: dict[str, Any]) -> NodeConfig:
    """A node whose clients log in."""
    folder = _folder(order, "sasl")
    write_first_user(folder / "first-user", ADMIN, ADMIN)
    security = Security(authentication=True, first_user="first-user", super_users=[f"User:{ADMIN}"])
    return config_of_one(folder, "127.0.0.1", order["sasl"], order["partitions"], security)


class Orders:
    """Carries out what the tests ask for on the node with logins."""

    def __init__(self, port: int) -> None:
        self._admin = AdminClient(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": ADMIN,
                "sasl.password": ADMIN,
            }
        )
        for user in USERS:
            self.user(user, user)
            for kind, name, operation in EVERYBODY:
                self.grant(kind, name, user, operation, "ALLOW")

    def user(self, name: str, password: str) -> None:
        """Make a user, or give it this password."""
        made = [
            UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 8192), password.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for answer in self._admin.alter_user_scram_credentials(made).values():
            answer.result()

    def grant(self, kind: str, name: str, user: str, operation: str, permission: str) -> None:
        """Add an access control list."""
        binding = self._binding(kind, name, user, operation, permission, AclBinding)
        for answer in self._admin.create_acls([binding]).values():
            answer.result()

    def revoke(self, kind: str, name: str, user: str, operation: str, permission: str) -> None:
        """Remove it."""
        binding = self._binding(kind, name, user, operation, permission, AclBindingFilter)
        for answer in self._admin.delete_acls([binding]).values():
            answer.result()

    @staticmethod
    def _binding(kind: str, name: str, user: str, operation: str, permission: str, of: Any) -> Any:
        return of(
            ResourceType[kind],
            name,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[operation],
            AclPermissionType[permission],
        )


def main(order: dict[str, Any]) -> None:
    """See the module's text."""
    settings = {"num_partitions": str(order["partitions"])}
    with (
        start_nodes(Path(order["folder"]) / "plain", settings, order["plain"], order["nodes"]),
        single_node(tls_config(order)),
        single_node(sasl_config(order)),
    ):
        orders = Orders(order["sasl"])
        print("ready", flush=True)
        for line in sys.stdin:
            what, *words = json.loads(line)
            try:
                getattr(orders, what)(*words)
            except KafkaException as error:
                print(json.dumps(str(error)), flush=True)
            else:
                print(json.dumps("done"), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
