"""The page about the Kafka listener says what is served."""

import re
from pathlib import Path

from antiphon.kafka.apis import APIS
from antiphon.kafka.connection import REQUESTS_MAX
from antiphon.kafka.features import CONDITIONAL_APPEND
from antiphon.kafka.framing import FRAME_BYTES_MAX
from antiphon.kafka.groups.types import DEFAULT_GROUP_CONFIG
from antiphon.node.config import Limits
from antiphon.tools.diagrams import kafka_apis

PAGE_PATH = Path(__file__).parent.parent.parent / "docs" / "kafka.md"
PAGE = PAGE_PATH.read_text()


def test_the_table_of_apis_is_made_from_the_rows() -> None:
    made = kafka_apis(PAGE_PATH.parent.parent)
    assert f"<!-- made: kafka apis -->\n{made}\n" in PAGE
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \|", PAGE, re.MULTILINE)
    assert rows == [(str(a.key), a.name, str(a.min_version), str(a.max_version)) for a in APIS.values()]
    assert all(api.routing in made and api.notes in made for api in APIS.values())


def test_the_figures_are_those_in_the_code() -> None:
    assert f"{REQUESTS_MAX} requests or {Limits().connection_memory >> 20} MiB" in PAGE
    assert f"up to {FRAME_BYTES_MAX >> 20} MiB" in PAGE
    assert DEFAULT_GROUP_CONFIG.initial_delay_ms == 500
    assert "waits half a second" in PAGE
    assert CONDITIONAL_APPEND in PAGE
