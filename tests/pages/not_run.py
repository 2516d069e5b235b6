"""The blocks that no test runs as they stand, each with the reason. What is not here is run."""

from typing import Final

from tests.pages.blocks import ROOT, Block, blocks_of

# Every page that there is: a new one is run without being named here.
PAGES: Final = (
    "README.md",
    "CONTRIBUTING.md",
    *(
        str(page.relative_to(ROOT))
        for folder in ("docs", "docs/tasks")
        for page in sorted((ROOT / folder).glob("*.md"))
    ),
)

# Pages whose blocks another test runs, all of them.
ELSEWHERE: Final = {
    "docs/drills.md": "tests/pages/test_drills.py",
    "docs/python.md": "tests/client/test_sync.py",
    "docs/testing.md": "tests/testing/test_cluster.py",
    "docs/tracing.md": "tests/pages/test_pages.py",
}

_INSTALLS: Final = "installs from the registry; tests/packaging/test_packaging.py does that with the wheel"
_DRIVER: Final = "each command starts a Spark driver of its own; "
_JOBS: Final = (
    f"{_DRIVER}tests/spark/test_audit.py and test_replay.py and tests/cli/test_archive_commands.py run them"
)
_MAKE: Final = (
    "works on the source tree, for minutes to an hour; test_commands_on_pages.py looks for the targets"
)
_OXIA: Final = (
    "needs Oxia's client, which the tests do not install; tests/oxia/test_calls.py makes the calls, and `make interop` has "
    "the client"
)
_BROKERS: Final = "--bootstrap-server localhost:9092 --entity-type brokers"
_SECURE: Final = '{"servers": "node-0:7400", "tls": "authority.pem", "user": "alice", "password": password}'

# By page and first line of the block.
NOT_RUN: Final[dict[tuple[str, str], str]] = {
    ("README.md", "make demo"): (
        "is this whole test run; tests/cli/test_demo.py runs the demo"
    ),
    ("README.md", "antiphon audit"): _JOBS,
    ("CONTRIBUTING.md", "git clone <this repository> && cd antiphon"): _MAKE,
    ("CONTRIBUTING.md", "make fuzz"): _MAKE,
    ("docs/benchmarks.md", "make bench-peers"): _MAKE,
    ("docs/soak.md", "make soak"): _MAKE,
    ("docs/capacity.md", "antiphon capacity --measure costs.json"): (
        "measures this machine for minutes; tests/capacity/test_capacity.py measures in small"
    ),
    ("docs/dashboard.md", "antiphon top --dir /tmp/antiphon"): (
        "wants a terminal and somebody who types q; tests/cli/test_top.py has both"
    ),
    ("docs/spark.md", "antiphon spark-warm"): f"{_DRIVER}tests/spark/test_classes.py runs it",
    ("docs/jobs.md", "antiphon audit"): f"{_DRIVER}the block below does the same; tests/spark/test_audit.py",
    ("docs/jobs.md", "antiphon archive flights --to s3://bucket/archive --older-than 7d"): (
        f"{_DRIVER}the block below does the same; tests/cli/test_archive_commands.py"
    ),
    ("docs/jobs.md", "antiphon replay aircraft --as-of-time 2026-03-01T12:00:00Z --to-table aircraft-march"): (
        f"{_DRIVER}tests/spark/test_replay.py runs the jobs, and docs/tasks/backup.md one with its command"
    ),
    ("docs/jobs.md", "antiphon load aircraft --from aircraft.parquet --key tailnum --txn-id aircraft-2026"): (
        f"{_DRIVER}the block below does the same; tests/spark/test_bulk_load.py"
    ),
    ("docs/lake.md", 'storage = {"key": "...", "secret": "...", "endpoint_url": "https://store.example:9000"}'): (
        "needs an object store; tests/lake/test_object_store.py runs the same jobs on a stand-in"
    ),
    ("docs/membership.md", "antiphon node voters"): (
        "wants a cluster of five, in which a voter is gone for good; tests/node/test_voters.py makes the changes, and "
        "tests/cli/test_voters_command.py reads the command's words"
    ),
    ("docs/metrics.md", "antiphon up --nodes 3 --dir /tmp/antiphon &"): (
        "needs Prometheus and the usual ports; tests/monitoring/ and tests/server/test_metrics.py check the files"
    ),
    ("docs/operations.md", "antiphon node restart --all --command 'ssh {host} sudo systemctl restart antiphon'"): (
        "needs machines with systemd; tests/rolling/test_restart.py restarts by a command"
    ),
    ("docs/operations.md", f"kafka-configs {_BROKERS} --entity-default --alter \\"): (
        "needs Kafka's own tools; tests/kafka/test_broker_settings.py makes the calls"
    ),
    ("docs/operations.md", "sudo useradd --system --no-create-home antiphon"): (
        "sets up a machine with systemd; tests/deploy/test_files.py checks the unit"
    ),
    ("docs/operations.md", "podman build -f deploy/container/Containerfile -t antiphon ."): (
        "needs a container engine and a registry; tests/deploy/test_nodes.py starts what the image starts"
    ),
    ("docs/operations.md", "kubectl create namespace antiphon"): (
        "needs Kubernetes; tests/deploy/test_files.py checks the manifests, tests/deploy/test_nodes.py starts them"
    ),
    ("docs/oxia.md", "import oxia"): _OXIA,
    ("docs/security.md", "antiphon up --secure --dir /tmp/antiphon --detach"): (
        "wants the usual ports; docs/tasks/secure.md has the same commands with others, and is run"
    ),
    ("docs/security.md", f"secure = {_SECURE}"): (
        "wants a secure cluster and Spark at once; tests/spark/test_secure.py"
    ),
    ("docs/tasks/backup.md", "antiphon replay task-prices --as-of-time 2026-03-01T12:00:00Z --to-table task-prices-march"): (
        "names a time before the table; the block above it runs the same job"
    ),
    ("docs/install.md", "pip install antiphon"): _INSTALLS,
}  # fmt: skip


def runs(block: Block) -> bool:
    """Is it run, by `test_pages.py` or `test_spark_pages.py`?"""
    return block.page not in ELSEWHERE and (block.page, block.first_line) not in NOT_RUN


def wants_spark(page: str) -> bool:
    """Does a block of the page need Spark?"""
    return any(
        "antiphon.spark" in block.text or "spark." in block.text for block in blocks_of(page) if runs(block)
    )
