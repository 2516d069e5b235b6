"""`antiphon transactions`, over transactions of a real client."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from typer.testing import CliRunner

from antiphon.cli.main import app
from tests.kafka.served import Served, serve
from tests.kafka.transactional_clients import Confluent, FencedError
from tests.node.processes import eventually


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("node")) as running:
        running.create("t")
        yield running


def ask(served: Served, *words: str, code: int = 0) -> str:
    servers = served.do(lambda: served.node.meta().native)
    done = CliRunner().invoke(app, ["transactions", *words, "--servers", servers])
    assert done.exit_code == code, done.output
    return done.output


def test_an_open_transaction_is_listed_described_and_aborted(served: Served) -> None:
    assert json.loads(ask(served, "list", "--json")) == []
    writer = Confluent(served.address, "orders-1")
    writer.begin()
    writer.send("t", "x")
    (one,) = json.loads(ask(served, "list", "--open", "--json"))
    assert (one["transactional_id"], one["state"], one["number"], one["node"]) == (
        "orders-1",
        "Ongoing",
        1,
        0,
    )
    assert "orders-1" in ask(served, "list")
    told = json.loads(ask(served, "describe", "orders-1", "--json"))
    assert told["partitions"] == ["t/0"]
    text = ask(served, "describe", "orders-1").splitlines()
    assert {"partitions: t/0", f"shards: {told['shards'][0]}", "state: Ongoing"} <= set(text)
    assert "fenced" in ask(served, "abort", "orders-1")
    with pytest.raises((FencedError, KafkaException)):
        writer.commit()
    eventually(lambda: json.loads(ask(served, "list", "--open", "--json")) == [])
    assert "no open transaction" in ask(served, "abort", "orders-1", code=1)
    assert "there is no transactional id" in ask(served, "describe", "absent", code=2)
