"""kafka-python's own integration tests: producer, consumer, admin, SASL, TLS. They come with its source distribution."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.interop.broker import COMMAND, PROPERTIES
from tests.interop.nodes import start_nodes
from tests.interop.suite import FOUR_PARTITIONS, Outcome, outcomes_in, source_of
from tests.peers.servers.peer import UnavailableError

VERSION: Final = "3.0.12"
SHA256: Final = "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
BROKER: Final = "4.2.0"  # what the tests are told that they talk to
TEST_S: Final = 60
RUN_S: Final = 900.0
FILES: Final = ("producer", "consumer", "admin")  # against nodes that run already
# It wants what several partitions have from one `poll`, which returns with the answer of the node that is first.
OF_ONE_NODE: Final = "test_delete_records and not errors"
STARTED: Final = ("sasl", "ssl")  # against a node that their fixtures start, another one for each test
ROOT: Final = Path(__file__).parents[2]
# Their source distribution leaves out what starts brokers, and its settings. These start a node in the broker's place.
SERVICE: Final = '''"""Where a broker is: one that runs, or a node of Antiphon that is started in its place."""
import os
import select
import subprocess
import sys


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, args, env):
        self.args, self.env, self.child = args, env, None

    def start(self):
        command = [sys.executable, "-m", "tests.interop.broker", self.args[-1]]
        beside = {"PYTHONPATH": os.environ["ANTIPHON_PATH"]}
        self.child = subprocess.Popen(
            command, env={**os.environ, **beside}, stdout=subprocess.PIPE, text=True, cwd=os.environ["ANTIPHON_ROOT"]
        )

    def wait_for(self, pattern, timeout):
        if not hasattr(self, "said"):
            ready, _, _ = select.select([self.child.stdout], [], [], timeout)
            self.said = self.child.stdout.readline() if ready else ""
        return self.said.strip() == "ready"

    def stop(self):
        self.child.terminate()
        self.child.wait(20)
        self.child.stdout.close()

    def dump_logs(self):
        pass
'''
# What their fixture asks Kafka's own scripts for.
NOTHING: Final = "#!/bin/sh\nexit 0\n"
TOPICS: Final = """#!{python}
import sys

sys.path[:0] = [{source!r}, {root!r}]
from kafka import KafkaAdminClient
from pathlib import Path
from tests.interop.broker import properties_of, user_of

said = properties_of(Path(sys.argv[sys.argv.index("--command-config") + 1]))
user, password = user_of(said.pop("jaas"))
admin = KafkaAdminClient(
    bootstrap_servers=sys.argv[sys.argv.index("--bootstrap-server") + 1],
    sasl_plain_username=user, sasl_plain_password=password, **said,
)
topics = admin.list_topics()
print(*[one if isinstance(one, str) else one["name"] for one in topics], sep="\\n")
admin.close()
"""


class KafkaPython:
    """See the module's text."""

    name = "kafka-python"
    title = f"kafka-python {VERSION}, its integration tests"
    differences: dict[str, str] = {
        "test_alter_replica_log_dirs": "a node has one directory, so AlterReplicaLogDirs is not served",
        "test_kafka_version_infer": "it infers Kafka 4.0 from the versions of the APIs, not 4.2",
    }

    settings = FOUR_PARTITIONS

    def __init__(self) -> None:
        self._source = Path()

    def get(self, folder: Path) -> None:
        """See Suite."""
        self._source = source_of("kafka-python", VERSION, SHA256, folder)
        tests = self._source / "test"
        if not (tests / "integration").is_dir():
            raise UnavailableError(f"{self._source} has no integration tests")
        (tests / "__init__.py").touch()
        (tests / "service.py").write_text(SERVICE)
        scripts = self._source / "servers" / BROKER / "kafka-bin" / "bin"
        settings = self._source / "servers" / "resources" / "default"
        for place in (scripts, settings):
            place.mkdir(parents=True, exist_ok=True)
        (settings / "kafka.properties").write_text(PROPERTIES)
        (settings / "sasl_command.conf").write_text(COMMAND)
        (settings / "kafka_server_jaas.conf").write_text("{jaas_config}\n")
        topics = TOPICS.format(python=sys.executable, source=str(self._source), root=str(ROOT))
        for name, text in (("kafka-storage.sh", NOTHING), ("kafka-topics.sh", topics)):
            (scripts / name).write_text(text)
            (scripts / name).chmod(0o700)

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """See Suite."""
        started = {"ANTIPHON_PATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "ANTIPHON_ROOT": str(ROOT)}
        outcomes = self.against(kafka, FILES, where, f"not ({OF_ONE_NODE})")
        with start_nodes(where / "alone", self.settings, nodes=1) as alone:
            outcomes += self.against(alone.kafka, ("admin",), where, OF_ONE_NODE)
        return [*outcomes, *self._tests(STARTED, started, where)]

    def against(self, kafka: str, names: tuple[str, ...], where: Path, chosen: str = "") -> list[Outcome]:
        """The tests of some of the files, against nodes that run already; `chosen`: which of them (pytest's `-k`)."""
        return self._tests(names, {"KAFKA_URI": f"kafka://{kafka.split(',', maxsplit=1)[0]}"}, where, chosen)

    def _tests(
        self, names: tuple[str, ...], beside: dict[str, str], where: Path, chosen: str = ""
    ) -> list[Outcome]:
        told, settings = where / f"kafka-python-{names[0]}.xml", where / "kafka-python.ini"
        settings.write_text("[pytest]\n")
        files = [f"test/integration/test_{name}_integration.py" for name in names]
        command = [
            sys.executable, "-m", "pytest", "-q", "-c", str(settings), "--rootdir", ".", f"--junitxml={told}",
            "-p", "no:cacheprovider", "--timeout", str(TEST_S), "--timeout-method", "signal", "-k", chosen, *files,
        ]  # fmt: skip
        environment = os.environ | {"KAFKA_VERSION": BROKER, "PYTHONPATH": str(self._source)} | beside
        try:
            subprocess.run(
                command, cwd=self._source, env=environment, capture_output=True, check=False, timeout=RUN_S
            )
        except subprocess.TimeoutExpired:
            return [Outcome(f"all of {names[0]}", "failed", f"it did not end within {RUN_S:.0f} s")]
        return outcomes_in(told, f"all of {names[0]}")
