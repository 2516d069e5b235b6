"""The pages of the reference, each made from what it describes."""

from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Final

import antiphon
from antiphon.cli.next_commands import NEXT
from antiphon.coordination.topic_settings import TOPIC_SETTINGS
from antiphon.errors import AntiphonError
from antiphon.tools.diagrams import kafka_apis
from tests.website.commands import commands
from tests.website.settings import node_settings

_MADE: Final = "<!-- Made from the code by tests.website; there is nothing to edit here. -->\n\n"

_ABOUT_ERRORS: Final = """\
# Errors

All are subclasses of `antiphon.AntiphonError`, with `code`, `message`, `retriable` and `details`. The code is what travels
to clients. *Retriable*: the same request may succeed later without a change by the caller; clients repeat it themselves,
within their time-out."""
_ABOUT_NEXT: Final = """\
## The next command

What commands name at the end of an error: the first row that fits. What is in braces is filled in, of the error or of the
command that failed; a row whose names are not all known is passed over. In parentheses: what else has to be so. `--dir` and
`--servers` are added as they were given."""
_ABOUT_TOPICS: Final = """\
# Settings of topics and tables

Set with `--config NAME=VALUE` of `antiphon topic create` and `topic alter`, with `config=` in Python, or through Kafka's
admin clients. [modes.md](../modes.md) says what those of replication give and cost, which of them change in use, and which
combinations are refused. [kafka.md](../kafka.md) has the others."""
_ABOUT_KAFKA: Final = """\
# Kafka APIs

These are served on the Kafka listener. [kafka.md](../kafka.md) says what clients can use, and what differs from Kafka."""

# The pages about Python: title, text, and the names with the module that has them.
PYTHON_PAGES: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "python-client.md": (
        "Python client",
        "The blocking client. `antiphon.ABSENT` is the version of a key that is not there.",
        (
            "antiphon.connect", "antiphon.local", "antiphon.Client", "antiphon.Topic", "antiphon.Table",
            "antiphon.LogBackedStore", "antiphon.Applied", "antiphon.Changes", "antiphon.Change", "antiphon.ChangeKind",
            "antiphon.Record", "antiphon.Row", "antiphon.Version", "antiphon.Position", "antiphon.UnreadableBatch",
            "antiphon.dead_letters",
            "antiphon.Codec", "antiphon.JsonCodec", "antiphon.MsgpackCodec", "antiphon.TextCodec", "antiphon.show",
        ),
    ),
    "python-asynchronous.md": (
        "Asynchronous Python client",
        "For event loops. What has no text here has the meaning that it has in the blocking client.",
        (
            "antiphon.aio.connect", "antiphon.aio.AsyncClient", "antiphon.aio.AsyncTopic", "antiphon.aio.AsyncTable",
            "antiphon.aio.AsyncLogBackedStore", "antiphon.aio.Watch",
        ),
    ),
    "python-recipes.md": (
        "Recipes",
        "What each of them guarantees, and what it does not, is in [recipes.md](../recipes.md).",
        tuple(f"antiphon.recipes.{name}" for name in ("Lock", "LeaderElection", "Counter", "Queue", "ServiceRegistry")),
    ),
    "python-testing.md": (
        "Clusters in tests",
        "[testing.md](../testing.md) has examples.",
        ("antiphon.testing.cluster", "antiphon.testing.Cluster", "antiphon.testing.Node"),
    ),
    "python-spark.md": (
        "Spark and jobs",
        "Options of reads and writes are in [spark.md](../spark.md), jobs in [jobs.md](../jobs.md).",
        (
            "antiphon.spark.session", "antiphon.spark.servers", "antiphon.spark.upserts", "antiphon.spark.jobs.audit",
            "antiphon.spark.jobs.archive", "antiphon.spark.jobs.replay_table", "antiphon.spark.jobs.fold_topic",
            "antiphon.spark.jobs.compare_table", "antiphon.spark.jobs.bulk_load", "antiphon.lake.mirror_topic",
            "antiphon.lake.mirror_table", "antiphon.lake.compact", "antiphon.lake.expire", "antiphon.lake.open_target",
        ),
    ),
}  # fmt: skip


def reference_pages() -> dict[str, str]:
    """File names with their text."""
    pages = {
        "commands.md": commands(),
        "errors.md": errors(),
        "kafka-apis.md": _kafka(),
        "node-settings.md": node_settings(),
        "topic-settings.md": topic_settings(),
        **{name: python_page(*parts) for name, parts in PYTHON_PAGES.items()},
    }
    return {name: f"{_MADE}{text.strip()}\n" for name, text in pages.items()}


def python_page(title: str, text: str, names: tuple[str, ...]) -> str:
    """A page with what is said in the code about each of the names; one that does not exist is an AttributeError."""
    parts = [f"# {title}", text]
    for name in names:
        module, _, attribute = name.rpartition(".")
        found = getattr(import_module(module), attribute)
        # A name of the public module is loaded from the one that has it when it is first used.
        parts.append(f"::: {found.__module__}.{found.__qualname__}\n    options:\n      heading: {name}")
    return "\n\n".join(parts)


def errors() -> str:
    """A row for each error that the package may raise on purpose."""
    for module in walk_packages(antiphon.__path__, "antiphon."):
        if (
            ".spark." not in module.name
            and ".lake." not in module.name
            and not module.name.endswith("__main__")
        ):
            _import_if_it_can_be(module.name)
    table = "\n".join(["| code | class | retriable | meaning |", "|---|---|---|---|", *_error_rows()])
    next_ones = "\n".join(["| error | of commands | next command | |", "|---|---|---|---|", *_next_rows()])
    return f"{_ABOUT_ERRORS}\n\n{table}\n\n{_ABOUT_NEXT}\n\n{next_ones}"


def _next_rows() -> list[str]:
    rows = []
    for row in NEXT:
        classes = row.errors if isinstance(row.errors, tuple) else (row.errors,)
        names = ", ".join(f"`{one.__name__}`" for one in classes)
        command = row.command.replace("{where}", "").replace("{dir}", "").replace("|", "\\|")
        of = "all" if row.of == ".+" else f"`{row.of}`".replace("|", "\\|")
        known = " ".join(f"({name}: {value})" for name, value in row.facts.items())
        rows.append(f"| {f'{names} {known}'.strip()} | {of} | `{command}` | {row.does} |")
    return rows


def _error_rows() -> list[str]:
    found: dict[str, type[AntiphonError]] = {}
    waiting = [AntiphonError]
    while waiting:
        one = waiting.pop()
        found[f"{one.code} {one.__name__}"] = one
        waiting += one.__subclasses__()
    return [
        f"| `{one.code}` | `{one.__name__}` | {'yes' if one.retriable else 'no'} | {_first_part(one.__doc__)} |"
        for _, one in sorted(found.items())
        if one.__module__.startswith("antiphon.") and one is not AntiphonError
    ]


def _import_if_it_can_be(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("antiphon"):
            raise


def topic_settings() -> str:
    """A row for each setting of topics."""
    rows = [f"| `{one.name}` | `{one.default}` | {one.documentation} |" for one in TOPIC_SETTINGS.values()]
    table = "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])
    return f"{_ABOUT_TOPICS}\n\n{table}"


def _kafka() -> str:
    return f"{_ABOUT_KAFKA}\n\n{kafka_apis(Path())}"


def _first_part(text: str | None) -> str:
    return " ".join((text or "").strip().partition("\n\n")[0].split()).replace("|", "\\|")
