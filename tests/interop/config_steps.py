"""What is done with `kafka-configs`, in order: settings of brokers, loggers, topics, groups, quotas and users."""

from collections.abc import Callable, Iterator
from typing import Final

TOOL: Final = "kafka.admin.ConfigCommand"
Step = Callable[[], str]
At = Callable[..., str]


def config_steps(at: At) -> Iterator[tuple[str, Step]]:
    """Steps with their names. `at` runs a tool, with the pattern that has to be in what it says as `expect`."""

    def changed_and_described(entity: tuple[str, ...], change: str, *patterns: str) -> Step:
        def step() -> str:
            at(TOOL, "--alter", *entity, "--add-config", change, expect="Completed updating")
            told = ""
            for pattern in patterns:
                told = at(TOOL, "--describe", *entity, expect=pattern)
            return told

        return step

    def reset(entity: tuple[str, ...], names: str) -> Step:
        return lambda: at(TOOL, "--alter", *entity, "--delete-config", names, expect="Completed updating")

    every, one = ("brokers", "--entity-default"), ("brokers", "--entity-name", "1")
    for title, entity, change, *patterns in (
        ("settings of all brokers", every, "log.cleaner.backoff.ms=9000", "backoff.ms=9000 sensitive=false"),
        (
            "settings of one broker",
            one,
            "num.partitions=3,log_level=info",
            r"num.partitions=3 .*DYNAMIC_BROKER_CONFIG:num.partitions=3",
        ),
        ("the level of a broker's log", ("broker-loggers", "--entity-name", "1"), "root=WARN", "root=WARN"),
        (
            "settings of a topic",
            ("topics", "--entity-name", "in"),
            "retention.ms=99999999",
            "retention.ms=99999999",
        ),
        (
            "settings of a share group",
            ("groups", "--entity-name", "configured"),
            "share.record.lock.duration.ms=20000",
            "share.record.lock.duration.ms=20000",
        ),
        (
            "quotas of a user",
            ("users", "--entity-name", "ann"),
            "consumer_byte_rate=1000",
            "consumer_byte_rate=1000.0",
        ),
        (
            "quotas of every client id",
            ("clients", "--entity-default"),
            "producer_byte_rate=99999999",
            "default client-id are producer_byte_rate=9.9999999E7",
        ),
        (
            "quotas of an address",
            ("ips", "--entity-name", "10.0.0.1"),
            "connection_creation_rate=5",
            "ip '10.0.0.1' are connection_creation_rate=5.0",
        ),
        (
            "a user's password",
            ("users", "--entity-name", "bob"),
            "SCRAM-SHA-256=[iterations=8192,password=secret]",
            "SCRAM-SHA-256=iterations=8192",
        ),
    ):
        yield title, changed_and_described(("--entity-type", *entity), change, *patterns)
    for title, entity, names in (
        ("settings of a broker go back", one, "num.partitions,log_level"),
        ("those of all brokers go back", every, "log.cleaner.backoff.ms"),
        ("quotas of clients are taken away", ("clients", "--entity-default"), "producer_byte_rate"),
        ("a password is taken away", ("users", "--entity-name", "bob"), "SCRAM-SHA-256"),
    ):
        yield title, reset(("--entity-type", *entity), names)
