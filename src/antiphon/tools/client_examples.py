"""The settings of clients of a secure cluster, as `antiphon up --secure` prints them: to be copied as they are.

No line holds the password. Where a client cannot read a file by itself the line reads it, in the client's own process.
"""

import shlex
from pathlib import Path

from antiphon.client.local_folder import AUTHORITY_FILE, FIRST_USER, PASSWORD_FILE, LocalClusterFile
from antiphon.tools.cluster_files import SETTINGS_FILE
from antiphon.tools.secure_folder import client_settings


def as_plain(directory: Path) -> dict[str, str]:
    """Where clients find what they need, for `--json`."""
    return {
        "user": FIRST_USER,
        "password_file": str(directory / PASSWORD_FILE),
        "authority": str(directory / AUTHORITY_FILE),
        "settings_file": str(directory / SETTINGS_FILE),
    }


def as_text(directory: Path, cluster: LocalClusterFile) -> str:
    """What a person reads and copies."""
    return "\n".join(
        (
            f"\nEvery listener takes TLS and asks who you are. User {FIRST_USER} may do everything.",
            f"The password is in {directory / PASSWORD_FILE}",
            "\n-- shell: commands, the Python client and Spark's driver read these variables",
            f"# with --dir {shlex.quote(str(directory))} the commands need none",
            shell(directory),
            "\n-- Python",
            python(directory, cluster),
            "\n-- curl",
            curl(directory, cluster),
        )
    )


def shell(directory: Path) -> str:
    """Lines for a shell."""
    return f". {shlex.quote(str(directory / SETTINGS_FILE))}\nantiphon status"


def curl(directory: Path, cluster: LocalClusterFile) -> str:
    """A line for a shell. `printf` is the shell's own, so the password is on no command line."""
    password, authority = (shlex.quote(str(directory / name)) for name in (PASSWORD_FILE, AUTHORITY_FILE))
    return (
        f'printf \'user = "{FIRST_USER}:%s"\' "$(cat {password})" | '
        f"curl -sS -K - --cacert {authority} https://{cluster.advertised(cluster.nodes[0].http)}/status"
    )


def python(directory: Path, cluster: LocalClusterFile) -> str:
    """Lines of a program, for the clients that programs use."""
    servers = client_settings(directory, cluster)["ANTIPHON_SERVERS"]
    kafka = ",".join(cluster.advertised(node.kafka) for node in cluster.nodes)
    return f"""\
import ssl
from pathlib import Path
import antiphon

authority = {str(directory / AUTHORITY_FILE)!r}
password = Path({str(directory / PASSWORD_FILE)!r}).read_text().strip()

db = antiphon.connect("{servers}", tls=authority, user="{FIRST_USER}", password=password)

spark_options = {{  # spark.read.format("antiphon").options(**spark_options, topic="...")
    "servers": "{servers}",
    "tls": authority,
    "user": "{FIRST_USER}",
    "password": password,
}}

confluent = {{  # confluent_kafka.Producer(confluent), Consumer({{**confluent, "group.id": "..."}})
    "bootstrap.servers": "{kafka}",
    "security.protocol": "SASL_SSL",
    "ssl.ca.location": authority,
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "{FIRST_USER}",
    "sasl.password": password,
}}
aiokafka = {{  # aiokafka.AIOKafkaProducer(**aiokafka), AIOKafkaConsumer("topic", **aiokafka)
    "bootstrap_servers": "{kafka}",
    "security_protocol": "SASL_SSL",
    "ssl_context": ssl.create_default_context(cafile=authority),
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_plain_username": "{FIRST_USER}",
    "sasl_plain_password": password,
}}"""
