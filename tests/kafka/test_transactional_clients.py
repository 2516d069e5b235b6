"""Kafka's clients for Python, unchanged, with transactions."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka.served import Served

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_what_is_committed_is_read_once_and_what_is_not_never(served: Served, client: str) -> None:
    served.create(f"of-{client}")
    ended = subprocess.run(
        (sys.executable, "-m", "tests.kafka.transactional_clients", client, served.address),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
