"""The page about the Kafka door says what is served."""

import re
from pathlib import Path

from antiphon.kafka.apis import APIS
from antiphon.kafka.connection import REQUEST_BYTES_MAX, REQUESTS_MAX
from antiphon.kafka.framing import FRAME_BYTES_MAX
from antiphon.kafka.group_types import DEFAULT_GROUP_CONFIG
from antiphon.kafka.metadata_api import CONDITIONAL_APPEND_FEATURE

PAGE = (Path(__file__).parent.parent.parent / "docs" / "kafka.md").read_text()


def test_the_table_of_versions_is_the_one_in_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \|$", PAGE, re.MULTILINE)
    served = [(str(a.key), a.name, str(a.min_version), str(a.max_version)) for a in APIS.values()]
    assert rows == served


def test_the_figures_are_those_in_the_code() -> None:
    assert f"{REQUESTS_MAX} requests or {REQUEST_BYTES_MAX >> 20} MiB" in PAGE
    assert f"up to {FRAME_BYTES_MAX >> 20} MiB" in PAGE
    assert DEFAULT_GROUP_CONFIG.initial_delay_ms == 500
    assert "waits half a second" in PAGE
    assert CONDITIONAL_APPEND_FEATURE in PAGE
