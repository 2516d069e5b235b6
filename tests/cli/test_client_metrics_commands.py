"""`antiphon client-metrics` against a cluster, in words and as JSON."""

import json
from collections.abc import Iterator

import pytest

from antiphon.tools.local_cluster import LocalCluster
from tests.cli.test_commands import Shell

SLOW = ("slow", "--metrics", "org.apache.kafka.producer.", "--metrics", "org.apache.kafka.consumer.")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with LocalCluster.start(directory=tmp_path_factory.mktemp("cluster")) as running:
        yield Shell(running)


def test_subscriptions_are_put_listed_described_and_deleted(shell: Shell) -> None:
    listed = shell.run("client-metrics", "list")
    assert (listed.stdout, "nothing is asked of clients" in listed.stderr) == ("", True)
    assert json.loads(shell.ok("client-metrics", "list", "--json")) == []
    said = shell.ok("client-metrics", "put", *SLOW, "--interval", "60000", "--match", "client_id=orders-.*")
    metrics = "org.apache.kafka.producer.,org.apache.kafka.consumer."
    assert said == f"slow: {metrics} of clients with client_id=orders-.*, every 60000 ms\n"
    told = {"name": "slow", "metrics": metrics, "interval_ms": 60_000, "match": "client_id=orders-.*"}
    assert json.loads(shell.ok("client-metrics", "list", "--json")) == [told]
    assert json.loads(shell.ok("client-metrics", "describe", "slow", "--json")) == told
    assert shell.ok("client-metrics", "list").splitlines() == [
        f"NAME  METRICS{' ' * (len(metrics) - 5)}INTERVAL_MS  MATCH",
        f"slow  {metrics}  60000        client_id=orders-.*",
    ]
    told |= {"interval_ms": 300_000, "match": ""}
    assert json.loads(shell.ok("client-metrics", "put", *SLOW, "--json")) == told, "it says this, and no more"
    rows = [line.split() for line in shell.ok("client-metrics", "describe", "slow").splitlines()]
    assert rows[1:] == [
        ["metrics", metrics, "set"],
        ["interval.ms", "300000", "default"],
        ["match", "default"],
    ]
    assert json.loads(shell.ok("client-metrics", "delete", "slow", "--json")) == {"deleted": told}
    assert json.loads(shell.ok("client-metrics", "list", "--json")) == []


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (("put", "bad"), 2, "--metrics"),
        (("put", "bad", "--metrics", "*", "--match", "colour=red"), 1, "is no ATTRIBUTE=REGEX"),
        (("put", "bad", "--metrics", "*", "--interval", "99"), 1, "from 100 to 3600000"),
        (("describe", "none"), 1, "there is no subscription 'none'; there are none"),
        (("delete", "none"), 1, "there is no subscription 'none'; there are none"),
    ],
)
def test_what_is_wrong_is_said(shell: Shell, words: tuple[str, ...], exit_code: int, said: str) -> None:
    assert said in shell.refused("client-metrics", *words, code=exit_code)
