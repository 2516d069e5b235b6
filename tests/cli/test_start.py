"""What every command loads before it does anything: parsing a command line and printing help need no more."""

import subprocess
import sys

# What a command needs of these it loads itself: together they took longer than Python and the parser.
NOT_LOADED = (
    *("antiphon.node", "antiphon.server", "antiphon.kafka", "antiphon.oxia", "antiphon.partition", "antiphon.log"),
    *("antiphon.client.aio", "antiphon.simulation", "antiphon.tools.bench.cluster", "cryptography"),
    *("numpy", "prometheus_client", "pyarrow", "pyspark", "rich", "starlette", "structlog"),
)  # fmt: skip
LOADED = "import sys, antiphon.cli.main; print(*sys.modules)"


def test_the_command_line_loads_nothing_that_only_some_commands_need() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert "antiphon.cli.topic_commands" in loaded
    assert not {
        name
        for name in loaded
        if name.startswith(tuple(f"{one}." for one in NOT_LOADED)) or name in NOT_LOADED
    }
