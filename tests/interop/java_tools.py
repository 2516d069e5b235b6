"""Kafka's own command-line tools, and so Java's client, from Maven's jars."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.interop.config_steps import config_steps
from tests.interop.suite import FOUR_PARTITIONS, Outcome, UnexpectedError, carried_out
from tests.peers.servers.maven import kafka_jars

VERSION: Final = "4.3.1"
RECORDS: Final = 2_000
TOOL_S: Final = 120.0
JVM: Final = (
    "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
Step = Callable[[], str]


class JavaTools:
    """See the module's text."""

    name = "java-tools"
    title = f"Kafka's command-line tools {VERSION}"
    differences: dict[str, str] = {}
    settings = FOUR_PARTITIONS

    def __init__(self) -> None:
        self._jars = self._core = Path()

    def get(self, folder: Path) -> None:
        """See Suite."""
        self._jars = kafka_jars("kafka-tools", VERSION, folder / f"kafka-tools-{VERSION}")
        self._core = kafka_jars("kafka_2.13", VERSION, folder / f"kafka-{VERSION}")

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """See Suite."""
        return carried_out(Steps(Tools(self._jars, self._core, kafka), kafka, where).all())


class Tools:
    """Runs one tool after the other: those of `kafka-tools`, and the one that is still in the broker's own jar (`core`)."""

    def __init__(self, jars: Path, core: Path, kafka: str) -> None:
        self._jars = jars
        self._core = core
        self._kafka = kafka

    def __call__(self, tool: str, *arguments: str, expect: str = "", given: str = "") -> str:
        """What the tool prints. Raises UnexpectedError if `expect` (a pattern) is not in it, or the tool failed."""
        of_core = tool.startswith("kafka.")
        name = tool if of_core else f"org.apache.kafka.tools.{tool}"
        done = subprocess.run(
            (*JVM, "-cp", "*", name, *arguments),
            cwd=self._core if of_core else self._jars,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=TOOL_S,
        )
        said = done.stdout + done.stderr
        if done.returncode or not re.search(expect, said, re.MULTILINE | re.DOTALL):
            raise UnexpectedError(f"{tool}: {said.strip()[-250:]}")
        return done.stdout

    def at(self, tool: str, *arguments: str, expect: str = "", given: str = "") -> str:
        """The same for a tool that takes the nodes as most of them do."""
        return self(tool, "--bootstrap-server", self._kafka, *arguments, expect=expect, given=given)


class Steps:
    """What is done with the tools, in order."""

    def __init__(self, tools: Tools, kafka: str, where: Path) -> None:
        self._tools = tools
        self._kafka = kafka
        self._where = where

    def all(self) -> Iterator[tuple[str, Step]]:
        """Steps with their names."""
        at = self._tools.at
        yield "a topic is made", lambda: at("TopicCommand", "--create", "--topic", "in", "--partitions", "4")
        yield "and another", lambda: at("TopicCommand", "--create", "--topic", "out", "--partitions", "4")
        yield (
            "it is described",
            lambda: at("TopicCommand", "--describe", "--topic", "in", expect="Isr: .,.,."),
        )
        yield "partitions are added", self._more_partitions
        yield "records are produced and verified", self._produce
        yield "records are consumed and verified", self._consume
        yield "console producer and consumer", self._console
        yield "appends that expect an offset", self._conditional
        yield "transactions with random aborts", self._transactions
        yield (
            "transactions are listed",
            lambda: at("TransactionsCommand", "list", expect="copier.*CompleteCommit"),
        )
        yield "a transaction is described", self._describe_transaction
        yield "producers are described", self._describe_producers
        yield "consumers of the consumer protocol", self._consume_anew
        yield "their group is described", self._describe_anew
        yield from self._shares()
        yield "offsets are told", lambda: at("GetOffsetShell", "--topic", "in", expect=r"in:0:\d+")
        yield (
            "a group is described",
            lambda: self._groups("--describe", "--group", "verified", expect=r"LAG.*\n"),
        )
        yield "a group is reset", self._reset
        yield (
            "a group is deleted",
            lambda: self._groups("--delete", "--group", "verified", expect="successful"),
        )
        yield "groups are listed", lambda: at("GroupsCommand", "--list", expect="copying")
        yield "records are deleted", self._delete_records
        yield "partitions are reassigned", self._reassign
        yield "leaders are elected", self._elect
        yield "directories are described", lambda: at("LogDirsCommand", "--describe", expect="in-0")
        yield (
            "the quorum is described",
            lambda: at("MetadataQuorumCommand", "describe", "--status", expect="LeaderId"),
        )
        yield from config_steps(at)
        yield "features are described", lambda: at("FeatureCommand", "describe", expect="Feature:")
        yield "versions are told", lambda: at("BrokerApiVersionsCommand", expect=r"Produce\(0\): \d+ to \d+")
        yield "the cluster's id is told", self._cluster_id
        yield "performance of a producer", self._perf_produce
        yield "performance of a consumer", self._perf_consume
        yield "compatibility of Java's client", self._compatible
        yield "a topic is deleted", lambda: at("TopicCommand", "--delete", "--topic", "console")

    def _groups(self, *arguments: str, expect: str = "") -> str:
        return self._tools.at("consumer.group.ConsumerGroupCommand", *arguments, expect=expect)

    def _file(self, name: str, value: object) -> str:
        path = self._where / name
        path.write_text(json.dumps(value))
        return str(path)

    def _more_partitions(self) -> str:
        self._tools.at("TopicCommand", "--create", "--topic", "grown", "--partitions", "1")
        self._tools.at("TopicCommand", "--alter", "--topic", "grown", "--partitions", "3")
        return self._tools.at("TopicCommand", "--describe", "--topic", "grown", expect="PartitionCount: 3")

    def _produce(self) -> str:
        count = ("--max-messages", str(RECORDS), "--acks", "-1")
        return self._tools.at("VerifiableProducer", "--topic", "in", *count, expect=f'"acked":{RECORDS}')

    def _consume(self) -> str:
        how = ("--topic", "in", "--group-id", "verified", "--max-messages", str(RECORDS))
        told = self._tools.at(
            "VerifiableConsumer", *how, "--reset-policy", "earliest", expect="shutdown_complete"
        )
        consumed = sum(
            event["count"]
            for event in map(json.loads, told.splitlines())
            if event["name"] == "records_consumed"
        )
        if consumed != RECORDS:
            raise UnexpectedError(f"{consumed} records were consumed, not {RECORDS}")
        return told

    def _consume_anew(self) -> str:
        """One member reads everything, by heartbeats."""
        how = (
            "--topic",
            "in",
            "--group-id",
            "anew",
            "--group-protocol",
            "consumer",
            "--reset-policy",
            "earliest",
        )
        told = self._tools.at(
            "VerifiableConsumer", *how, "--max-messages", str(RECORDS), expect="shutdown_complete"
        )
        given = [
            len(event["partitions"])
            for event in map(json.loads, told.splitlines())
            if event["name"] == "partitions_assigned"
        ]
        if sum(given) != 4:
            raise UnexpectedError(f"partitions were assigned in lots of {given}, not 4 together")
        return told

    def _shares(self) -> Iterator[tuple[str, Step]]:
        """Steps of share groups (KIP-932)."""
        yield "a share consumer takes all, and accepts it", self._consume_shared
        yield "a console share consumer", self._console_shared
        yield "its group is described", self._describe_shared
        yield "a share group is reset, and read again", self._reset_shared
        yield "performance of a share consumer", self._perf_shared
        yield "a share group is deleted", lambda: self._share_groups("--delete", "--group", "queued")

    def _share_groups(self, *arguments: str, expect: str = "") -> str:
        return self._tools.at("consumer.group.ShareGroupCommand", *arguments, expect=expect)

    def _consume_shared(self) -> str:
        how = ("--topic", "in", "--group-id", "queued", "--max-messages", str(RECORDS))
        told = self._tools.at(
            "VerifiableShareConsumer", *how, "--offset-reset-strategy", "earliest", expect="shutdown_complete"
        )
        events = [json.loads(line) for line in told.splitlines()]
        accepted = sum(event["count"] for event in events if event["name"] == "offsets_acknowledged")
        if accepted < RECORDS:
            raise UnexpectedError(f"{accepted} records were accepted, not {RECORDS}")
        return told

    def _console_shared(self) -> str:
        """Records that come twice and are accepted; then one that is rejected."""
        self._tools.at("TopicCommand", "--create", "--topic", "shared", "--partitions", "1")
        self._tools.at("ConsoleProducer", "--topic", "shared", given="zero\n")
        self._begin_at_start("shared", "shared")
        self._tools.at("ConsoleProducer", "--topic", "shared", given="one\ntwo\n")
        how = ("--topic", "shared", "--group", "shared", "--timeout-ms", "20000")
        released = (*how, "--release", "--max-messages", "2")
        self._tools.at("consumer.ConsoleShareConsumer", *released, expect="one\ntwo")
        told = self._tools.at("consumer.ConsoleShareConsumer", *how, "--max-messages", "2", expect="one\ntwo")
        self._tools.at("ConsoleProducer", "--topic", "shared", given="three\n")
        rejected = (*how, "--reject", "--max-messages", "1")
        self._tools.at("consumer.ConsoleShareConsumer", *rejected, expect="three")
        return told

    def _describe_shared(self) -> str:
        """By tools that ask for groups of all kinds."""
        self._share_groups("--describe", "--group", "shared", expect=r"shared +shared +0 +4")
        self._share_groups("--describe", "--group", "shared", "--state", expect="Empty")
        self._tools.at("GroupsCommand", "--list", "--share", expect="shared")
        return self._share_groups("--list", expect="shared")

    def _reset_shared(self) -> str:
        how = ("--reset-offsets", "--to-earliest", "--topic", "shared", "--execute")
        self._share_groups("--group", "shared", *how, expect=r"shared +shared +0 +0")
        again = ("--topic", "shared", "--group", "shared", "--timeout-ms", "20000", "--max-messages", "4")
        self._tools.at("consumer.ConsoleShareConsumer", *again, expect="one\ntwo\nthree")
        return self._share_groups(
            "--delete-offsets", "--group", "shared", "--topic", "shared", expect="shared"
        )

    def _perf_shared(self) -> str:
        self._begin_at_start("in", "perf-shared")
        how = ("--num-records", "500", "--group", "perf-shared", "--timeout", "20000")
        return self._tools.at("ShareConsumerPerformance", "--topic", "in", *how)

    def _begin_at_start(self, topic: str, group: str) -> str:
        """The tool that can say so takes a record."""
        how = ("--topic", topic, "--group-id", group, "--max-messages", "1")
        return self._tools.at(
            "VerifiableShareConsumer", *how, "--offset-reset-strategy", "earliest", expect="shutdown_complete"
        )

    def _describe_anew(self) -> str:
        """By tools that ask for groups of both protocols."""
        self._groups("--describe", "--group", "anew", expect=r"anew +in +\d+ +\d+")
        self._groups("--describe", "--group", "anew", "--state", expect="Empty")
        return self._groups("--list", "--type", "consumer", expect="anew")

    def _console(self) -> str:
        self._tools.at("ConsoleProducer", "--topic", "console", given="one\ntwo\nthree\n")
        how = ("--topic", "console", "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000")
        return self._tools.at("consumer.ConsoleConsumer", *how, expect="one\ntwo\nthree")

    def _conditional(self) -> str:
        """Java's producer says by a header where a record has to be written, and is refused where that is not next.

        The tool that makes topics takes no name of a setting that Kafka does not know.
        """
        at = self._tools.at
        at("TopicCommand", "--create", "--topic", "claims", "--partitions", "1")
        asks = ("--add-config", "expected.offset.header=true")
        of_topic = ("--alter", "--entity-type", "topics", "--entity-name", "claims")
        at("kafka.admin.ConfigCommand", *of_topic, *asks)
        how = ("--topic", "claims", "--reader-property", "parse.headers=true")
        at("ConsoleProducer", *how, given="antiphon.expected.offset:0\tfirst\n")
        refused = (
            "InvalidRecordException: the append expected to land at offset 0, the shard's next offset is 1"
        )
        at("ConsoleProducer", *how, given="antiphon.expected.offset:0\tsecond\n", expect=refused)
        return at("GetOffsetShell", "--topic", "claims", expect="^claims:0:1$")

    def _transactions(self) -> str:
        """What is copied from a partition in transactions, some of which are aborted and done again, is there once."""
        partition = max(range(4), key=self._end_of)
        count = self._end_of(partition)
        self._tools(
            "TransactionalMessageCopier", "--broker-list", self._kafka, "--input-topic", "in",
            "--input-partition", str(partition), "--output-topic", "out", "--max-messages", str(count),
            "--consumer-group", "copying", "--transactional-id", "copier", "--transaction-size", "100",
            "--enable-random-aborts", expect=f'"consumed":{count}',
        )  # fmt: skip
        how = ("--partition", str(partition), "--offset", "earliest", "--isolation-level", "read_committed")
        copied = self._tools.at(
            "consumer.ConsoleConsumer", "--topic", "out", *how, "--max-messages", str(count)
        )
        read = self._tools.at("consumer.ConsoleConsumer", "--topic", "in", *how, "--max-messages", str(count))
        if copied != read or len(copied.splitlines()) != count:
            raise UnexpectedError(f"{len(copied.splitlines())} records were copied, of {count}")
        return copied

    def _end_of(self, partition: int) -> int:
        told = self._tools.at("GetOffsetShell", "--topic", "in", "--partitions", str(partition))
        return int(told.strip().rpartition(":")[2])

    def _describe_transaction(self) -> str:
        name = ("--transactional-id", "copier")
        return self._tools.at("TransactionsCommand", "describe", *name, expect="copier")

    def _describe_producers(self) -> str:
        where = ("--topic", "out", "--partition", "0")
        return self._tools.at("TransactionsCommand", "describe-producers", *where, expect="ProducerId")

    def _reset(self) -> str:
        how = ("--reset-offsets", "--to-earliest", "--topic", "in", "--execute")
        return self._groups("--group", "verified", *how, expect=r"verified\s+in\s+\d\s+0")

    def _delete_records(self) -> str:
        wanted = {"version": 1, "partitions": [{"topic": "in", "partition": 0, "offset": -1}]}
        file = self._file("delete.json", wanted)
        return self._tools.at(
            "DeleteRecordsCommand", "--offset-json-file", file, expect="in-0\tlow_watermark"
        )

    def _reassign(self) -> str:
        wanted = {"version": 1, "partitions": [{"topic": "in", "partition": 0, "replicas": [1, 2, 0]}]}
        file = ("--reassignment-json-file", self._file("reassign.json", wanted))
        tool = "reassign.ReassignPartitionsCommand"
        self._tools.at(tool, *file, "--execute", expect="Successfully started")
        return self._tools.at(tool, *file, "--verify", expect="in-0 is (completed|complete)")

    def _cluster_id(self) -> str:
        where = ("cluster-id", "--bootstrap-server", self._kafka)
        return self._tools("ClusterTool", *where, expect="Cluster ID: ")

    def _elect(self) -> str:
        return self._tools.at(
            "LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions"
        )

    def _perf_produce(self) -> str:
        how = ("--num-records", "5000", "--record-size", "100", "--throughput", "-1")
        return self._tools.at("ProducerPerformance", "--topic", "in", *how, expect="5000 records sent")

    def _perf_consume(self) -> str:
        how = ("--num-records", "5000", "--group", "perf")
        return self._tools.at("ConsumerPerformance", "--topic", "in", *how, expect=r", \d{4,}, ")

    def _compatible(self) -> str:
        yes = [
            "--offsets-for-times-supported", "--cluster-id-supported",
            "--create-topics-supported", "--describe-configs-supported", "--idempotent-producer-supported",
            "--describe-acls-supported",
        ]  # fmt: skip
        arguments = [word for option in yes for word in (option, "true")]
        nodes = (
            "--num-cluster-nodes",
            "3",
            "--expect-record-too-large-exception",
            "false",
        )  # true: before 0.10.1
        return self._tools.at(
            "ClientCompatibilityTest", "--topic", "compatible", *arguments, *nodes, expect="SUCCESS"
        )
