"""librdkafka's own tests that need a broker, built from its source, one process for each number of its list.

The source comes with a package of another language's client, which is built from it where there is no binary.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from tests.interop.aiokafka_nodes import ADMIN, sasl_config
from tests.interop.nodes import single_node, start_nodes
from tests.interop.suite import Outcome
from tests.peers.servers.maven import kafka_jars
from tests.peers.servers.peer import UnavailableError, free_ports, run_tool

VERSION: Final = "2.15.1"
PACKAGE: Final = "@confluentinc/kafka-javascript@1.10.1"
ARCHIVE: Final = "confluentinc-kafka-javascript-1.10.1.tgz"
SHA256: Final = "ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66"
BROKER: Final = "4.0.0"  # what the tests are told that they talk to
SHARES: Final = {f"{number:04}": "4.2.0" for number in range(170, 191)}  # what those of share groups are told
TOOLS: Final = "4.3.1"  # Kafka's tools, which some tests start
TEST_S: Final = 300.0
BUILD_S: Final = 3_600.0
# What has to be here, and Debian's package of it. It would be built without the headers, and then skip tests.
PROGRAMS: Final = {
    "bash": "bash",
    "make": "build-essential",
    "gcc": "build-essential",
    "g++": "build-essential",
    "npm": "npm",
    "java": "default-jre-headless",
}
HEADERS: Final = {
    "zlib.h": "zlib1g-dev",
    "openssl/ssl.h": "libssl-dev",
    "zstd.h": "libzstd-dev",
    "rapidjson/schema.h": "rapidjson-dev",
}
# As their own clusters are set up: four partitions, a rack for each broker.
SETTINGS: Final = {"num_partitions": "4", "rack": '"RACK{id}"'}
WITHOUT_AUTO_CREATION: Final = SETTINGS | {"auto_create_topics": "false"}
ALTERED: Final = "it sets `sasl.kerberos.min.time.before.relogin` of a broker, which is no setting here"
ANONYMOUS: Final = (
    "it denies `User:*` a topic on listeners without logins; access control lists count where clients log in"
)
LONG: Final = ("0082",)  # which is not run in the quick mode
LOGGED_IN: Final = "0135"  # wants a broker that asks for credentials
LOGIN: Final = f"""security.protocol=SASL_PLAINTEXT
sasl.mechanisms=PLAIN
sasl.username={ADMIN}
sasl.password={ADMIN}
"""
PARTS: Final = "0081"  # a test of all of the administrator's operations
PART: Final = re.compile(r"\b(do_test_\w+)\(")
LAST: Final = "1000"  # from there on they are for people who look at them
SCENARIOS: Final = {"default": SETTINGS, "noautocreate": WITHOUT_AUTO_CREATION}
SCRIPTS: Final = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-run-class.sh": "",  # which one follows
}
SCRIPT: Final = """#!/bin/sh
exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=warn \\
    -cp '{jars}/*':"$CLASSPATH" {tool} "$@"
"""
LINE: Final = re.compile(r"^\|\s*(\d{4}_\w+)\s*\|\s*([A-Z]+) \|\s*[\d.]+s \|(.*)$", re.MULTILINE)
NOT_ASKED: Final = "Filtered"  # what needs no broker, and what is known to fail in librdkafka itself
FAILED: Final = re.compile(r'### Test "(\d{4}_\w+)[^\n]* failed at [^\n]*\n([^\n]*)')
COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")


def lacking() -> list[str]:
    """Debian's packages of what is not here of PROGRAMS and HEADERS, each once."""
    packages = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if shutil.which("g++") is not None:
        packages += [package for header, package in HEADERS.items() if not _is_found(header)]
    return sorted(set(packages))


def _is_found(header: str) -> bool:
    """Whether the C++ compiler finds a header."""
    looked = ("g++", "-E", "-x", "c++", "-include", header, os.devnull)
    return subprocess.run(looked, capture_output=True, check=False).returncode == 0


def outcomes_of(said: str, number: str) -> list[Outcome]:
    """What a run says of the tests with this number that its options let it run.

    There is no summary where a test failed and left threads behind; then its own words tell which one it was.
    """
    text = COLOUR.sub("", said)
    found: dict[str, Outcome] = {}
    for name, why in FAILED.findall(text):
        found.setdefault(name, Outcome(name, "failed", why[:300]))
    for name, state, why in LINE.findall(text):
        if name.startswith(number) and not why.strip().startswith(NOT_ASKED):
            result = {"PASSED": "passed", "SKIPPED": "skipped"}.get(state, "failed")
            found.setdefault(name, Outcome(name, result, why.strip()[:300]))
    return list(found.values())


class Librdkafka:
    """See the module's text."""

    name = "librdkafka"
    title = f"librdkafka {VERSION}, its tests against a broker"
    differences: dict[str, str] = {
        "0077_compaction": "it sets `file.delete.delay.ms`; settings that mean nothing here are refused",
        "0081_admin: do_test_AlterConfigs": ALTERED,
        "0081_admin: do_test_IncrementalAlterConfigs": ALTERED,
        "0081_admin: do_test_UserScramCredentials": "it sends a salt of 4 bytes; 12 are the least",
        "0109_auto_create_topics": ANONYMOUS,
        "0115_producer_auth": ANONYMOUS,
        "0119_consumer_auth": ANONYMOUS,
    }
    settings = SETTINGS

    def __init__(self) -> None:
        self._tests = self._kafka_path = Path()

    def get(self, folder: Path) -> None:
        """See Suite."""
        if missing := lacking():
            raise UnavailableError(f"it is built with what lacks here: apt-get install {' '.join(missing)}")
        self._tests = self._built(folder) / "tests"
        jars = kafka_jars("kafka-tools", TOOLS, folder / f"kafka-tools-{TOOLS}")
        self._kafka_path = folder / "kafka-scripts"
        (self._kafka_path / "bin").mkdir(parents=True, exist_ok=True)
        for name, tool in SCRIPTS.items():
            script = self._kafka_path / "bin" / name
            script.write_text(SCRIPT.format(jars=jars, tool=tool))
            script.chmod(0o700)
        if not (self._kafka_path / "libs").is_symlink():
            (self._kafka_path / "libs").symlink_to(jars)

    @staticmethod
    def _built(folder: Path) -> Path:
        """The source with its test program in it."""
        made = folder / f"librdkafka-{VERSION}"
        if made.is_dir():
            return made
        folder.mkdir(parents=True, exist_ok=True)
        run_tool(("npm", "pack", "--silent", PACKAGE), folder)
        found = hashlib.sha256((folder / ARCHIVE).read_bytes()).hexdigest()
        if found != SHA256:
            raise UnavailableError(f"{ARCHIVE} is not what it was: SHA-256 {found}")
        part = folder / f"librdkafka-{VERSION}.part"
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(folder / ARCHIVE) as files:
            files.extractall(part, filter="data")
        source = part / "package" / "deps" / "librdkafka"
        # With Debian's sh it would do nothing, and end well.
        run_tool(("bash", "./configure", "--disable-gssapi", "--disable-curl"), source, BUILD_S)
        make = ("env", "-u", "MAKEFLAGS", "nice", "make", "-j2", "-C")  # this may run below a make of ours
        for where in (("src",), ("src-cpp",), ("tests", "build")):
            run_tool((*make, *where), source, BUILD_S)
        source.rename(made)
        shutil.rmtree(part)
        return made

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """See Suite. The scenario without topics on demand has nodes of its own."""
        outcomes = self.chosen(self._numbers(), "default", kafka, where)
        with start_nodes(where / "others", WITHOUT_AUTO_CREATION) as others:
            outcomes += self.chosen(("0045", "0107", "0111"), "noautocreate", others.kafka, where)
        return outcomes + self._with_logins(where)

    def _with_logins(self, where: Path) -> list[Outcome]:
        """The test of credentials, on a node that asks for them."""
        (port,) = free_ports(1)
        with single_node(sasl_config({"folder": str(where), "sasl": port, "partitions": 4})):
            return self.chosen((LOGGED_IN,), "default", f"127.0.0.1:{port}", where, LOGIN)

    def _numbers(self) -> list[str]:
        files = [*self._tests.glob("[0-9]*.c"), *self._tests.glob("[0-9]*.cpp")]
        return sorted({file.name[:4] for file in files if file.name < LAST} - {LOGGED_IN})

    def chosen(
        self, numbers: list[str] | tuple[str, ...], scenario: str, kafka: str, where: Path, login: str = ""
    ) -> list[Outcome]:
        """Run the tests with these numbers."""
        settings = where / "test.conf"
        settings.write_text(f"metadata.broker.list={kafka}\ntest.topic.random=true\n{login}")
        environment = os.environ | {
            "RDKAFKA_TEST_CONF": str(settings),
            "TEST_KAFKA_VERSION": BROKER,
            "KAFKA_PATH": str(self._kafka_path),
            "BROKERS": kafka,
            "LD_LIBRARY_PATH": os.pathsep.join(str(self._tests.parent / one) for one in ("src", "src-cpp")),
        }
        outcomes = []
        for number in numbers:
            if number == PARTS:
                outcomes += self._in_parts(number, scenario, environment, where)
            else:
                outcomes += self._one(number, scenario, environment, where)
        return outcomes

    def _in_parts(
        self, number: str, scenario: str, environment: dict[str, str], where: Path
    ) -> list[Outcome]:
        """One process for each part of a test: else the first part that fails would hide the others."""
        (source,) = self._tests.glob(f"{number}-*.c")
        parts = sorted(set(PART.findall(source.read_text())))
        outcomes = []
        for part in parts:
            told = self._one(number, scenario, environment | {"SUBTESTS": part}, where)
            outcomes += [one._replace(test=f"{one.test}: {part}") for one in told]
        return outcomes

    def _one(self, number: str, scenario: str, environment: dict[str, str], where: Path) -> list[Outcome]:
        quick = () if number in LONG else ("-Q",)
        command = ("./test-runner", "-p1", "-L", *quick, "-s", scenario)
        log = where / f"{number}-{scenario}{environment.get('SUBTESTS', '')}.log"
        with log.open("wb") as said:
            try:
                subprocess.run(
                    command,
                    cwd=self._tests,
                    env=environment | {"TESTS": number, "TEST_KAFKA_VERSION": SHARES.get(number, BROKER)},
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    check=False,
                    timeout=TEST_S,
                )
            except subprocess.TimeoutExpired:
                return [Outcome(f"{number}: all", "failed", f"it did not end within {TEST_S:.0f} s")]
        text = log.read_text(errors="replace")
        told = outcomes_of(text, number)
        if not told and "SUMMARY" not in text:
            return [Outcome(f"{number}: all", "failed", text.strip()[-300:])]
        return [
            one for one in told if one.result != "skipped" or one.said
        ]  # without words: of another scenario
