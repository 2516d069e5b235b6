"""What is done with `kafka-configs`, in order: settings of brokers, loggers, topics, groups, clients' metrics, quotas and
users; and with `kafka-client-metrics`.
"""

from collections.abc import Callable, Iterator
from typing import Final

from tests.interop.suite import UnexpectedError

TOOL: Final = "kafka.admin.ConfigCommand"
METRICS_TOOL: Final = "ClientMetricsCommand"
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
            "settings of a group",
            ("groups", "--entity-name", "configured"),
            (
                "share.auto.offset.reset=by_duration:PT1H,share.record.lock.duration.ms=20000,"
                "share.session.timeout.ms=50000,consumer.heartbeat.interval.ms=6000"
            ),
            "share.auto.offset.reset=by_duration:PT1H",
            "share.record.lock.duration.ms=20000",
            "share.session.timeout.ms=50000",
            "consumer.heartbeat.interval.ms=6000",
        ),
        (
            "a subscription to clients' metrics",
            ("client-metrics", "--entity-name", "slow"),
            "metrics=[org.apache.kafka.producer.,org.apache.kafka.consumer.],interval.ms=5000",
            "interval.ms=5000 .*DYNAMIC_CLIENT_METRICS_CONFIG:interval.ms=5000",
            "metrics=org.apache.kafka.producer.,org.apache.kafka.consumer. ",
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
    yield from _client_metrics(at)
    for title, entity, names in (
        ("settings of a broker go back", one, "num.partitions,log_level"),
        ("those of all brokers go back", every, "log.cleaner.backoff.ms"),
        (
            "a subscription to clients' metrics goes",
            ("client-metrics", "--entity-name", "slow"),
            "metrics,interval.ms",
        ),
        ("quotas of clients are taken away", ("clients", "--entity-default"), "producer_byte_rate"),
        ("a password is taken away", ("users", "--entity-name", "bob"), "SCRAM-SHA-256"),
    ):
        yield title, reset(("--entity-type", *entity), names)


def _client_metrics(at: At) -> Iterator[tuple[str, Step]]:
    def refused() -> str:
        try:
            at(METRICS_TOOL, "--alter", "--name", "bad", "--match", "colour=red")
        except UnexpectedError as error:
            if "InvalidConfigurationException: 'colour=red' in match" in str(error):
                return ""
            raise
        raise UnexpectedError("a subscription to clients of a colour was taken")

    def deleted() -> str:
        at(METRICS_TOOL, "--delete", "--name", "fast", expect="Deleted")
        listed = at(METRICS_TOOL, "--list", expect="slow")
        if "fast" in listed:
            raise UnexpectedError(f"it is still listed: {listed}")
        return listed

    wanted = ("--metrics", "*", "--interval", "1000", "--match", "client_software_name=apache.*")
    yield (
        "kafka-client-metrics subscribes",
        lambda: at(METRICS_TOOL, "--alter", "--name", "fast", *wanted, expect="Altered"),
    )
    yield (
        "describes",
        lambda: at(
            METRICS_TOOL,
            "--describe",
            "--name",
            "fast",
            expect=r"interval.ms=1000.*match=client_software_name=apache.*metrics=\*",
        ),
    )
    yield "lists", lambda: at(METRICS_TOOL, "--list", expect="fast.*slow")
    yield "says why a subscription is refused", refused
    yield "and deletes", deleted
