"""A few tests of other projects against nodes, each time; all of them are for `make interop`. And how their words are read.

What cannot be had here is skipped by name.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.interop import oxia_go
from tests.interop.aiokafka_plugin import acl_of
from tests.interop.aiokafka_suite import AioKafka
from tests.interop.kafka_python import KafkaPython
from tests.interop.librdkafka import outcomes_of
from tests.interop.nodes import start_nodes
from tests.interop.suite import Outcome, folder
from tests.peers.servers.peer import UnavailableError

PRODUCER: Final = "tests/test_producer.py::TestKafkaProducerIntegration"
FEW: Final = (
    f"{PRODUCER}::test_producer_send",
    f"{PRODUCER}::test_producer_send_batch",
    "tests/test_consumer.py::TestConsumerIntegration::test_get_by_partition",
    "tests/test_transactional_producer.py::TestKafkaProducerIntegration::test_producer_transactional_simple",
    "tests/test_sasl.py::TestKafkaSASL::test_sasl_deny_topic_read",
)
SAID: Final = """\x1b[33m### Test "0081_admin (do_test_CreateTopics:78: main queue)" failed at admin.c:236:do() at Thu: ###
Expected NO_ERROR, not 40: INVALID_CONFIG
### Test "<MAIN>" failed at test.c:1950:test_wait_exit() at Thu: ###
5 thread(s) still active in librdkafka
"""
SUMMARY: Final = """TEST 20260101 (bare, scenario default) SUMMARY
|\x1b[36m <MAIN>                                   |     PASSED |   1.000s \x1b[0m|
|\x1b[32m 0022_consume_batch                       |     PASSED |   0.500s \x1b[0m|
|\x1b[36m 0022_consume_batch_local                 |    SKIPPED |   0.000s \x1b[0m|\x1b[36m Filtered due to flags\x1b[0m
|\x1b[36m 0022_other                               |    SKIPPED |   0.000s \x1b[0m|\x1b[36m no such program\x1b[0m
|\x1b[31m 0022_wrong                               |    RUNNING |   0.000s \x1b[0m|
|\x1b[31m 0023_not_asked                           |     PASSED |   0.000s \x1b[0m|
"""
GO: Final = """go: downloading something
{"Action":"run","Package":"github.com/x/oxia","Test":"TestSessions"}
{"Action":"pass","Package":"github.com/x/oxia","Test":"TestSessions/one","Elapsed":0.1}
{"Action":"pass","Package":"github.com/x/oxia","Test":"TestSessions","Elapsed":0.1}
{"Action":"output","Package":"github.com/x/oxia","Test":"TestRange","Output":"  Error: not equal\\n"}
{"Action":"fail","Package":"github.com/x/oxia","Test":"TestRange","Elapsed":0.1}
{"Action":"skip","Package":"github.com/x/oxia","Test":"TestLater","Elapsed":0}
{"Action":"fail","Package":"github.com/x/oxia","Elapsed":1}
{"Action":"pass","Package":"github.com/x/oxia/tests","Elapsed":1}
{"Action":"fail","Package":"github.com/x/oxia/internal","Elapsed":1}
"""


def test_outcomes_are_read_from_what_librdkafka_says() -> None:
    assert outcomes_of(SAID, "0081") == [
        Outcome("0081_admin", "failed", "Expected NO_ERROR, not 40: INVALID_CONFIG")
    ]
    assert outcomes_of(SUMMARY, "0022") == [
        Outcome("0022_consume_batch", "passed"),
        Outcome("0022_other", "skipped", "no such program"),
        Outcome("0022_wrong", "failed"),
    ]


def test_outcomes_are_read_from_what_go_says() -> None:
    assert oxia_go.outcomes_of(GO) == [
        Outcome("TestSessions", "passed"),
        Outcome("TestRange", "failed", "Error: not equal"),
        Outcome("TestLater", "skipped"),
        Outcome("internal", "failed"),
    ]


@pytest.mark.parametrize(
    ("command", "acl"),
    [
        ("--add --topic t --deny-principal User:test --operation READ", "TOPIC t test READ DENY"),
        ("--remove --group g --allow-principal User:test --operation All", "GROUP g test ALL ALLOW"),
        (
            "--add --cluster --deny-principal User:eve --operation CREATE",
            "BROKER kafka-cluster eve CREATE DENY",
        ),
    ],
)
def test_access_control_lists_are_read_from_a_command(command: str, acl: str) -> None:
    assert acl_of(command.split()) == acl.split()


@pytest.mark.slow
@pytest.mark.cluster
def test_a_few_tests_of_aiokafka(tmp_path: Path) -> None:
    suite = AioKafka()
    try:
        suite.get(folder())
    except UnavailableError as error:
        pytest.skip(str(error))
    outcomes = suite.chosen(FEW, 3, tmp_path)
    assert [(one.result, one.said) for one in outcomes] == [("passed", "")] * len(FEW)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_few_tests_of_kafka_python(tmp_path: Path) -> None:
    suite = KafkaPython()
    try:
        suite.get(folder())
    except UnavailableError as error:
        pytest.skip(str(error))
    with start_nodes(tmp_path / "nodes", suite.settings) as running:
        outcomes = suite.against(running.kafka, ("producer",), tmp_path)
    assert len(outcomes) > 5
    assert [one for one in outcomes if one.result == "failed"] == []
