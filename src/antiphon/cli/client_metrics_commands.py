"""`antiphon client-metrics`: which metrics Kafka's clients are asked to tell."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command, group
from antiphon.cli.output import print_json, print_table, say
from antiphon.errors import InvalidRequestError
from antiphon.model.client_metrics import (
    CLIENT_ATTRIBUTES,
    DEFAULTS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    Subscription,
    removal,
    replaced,
)

if TYPE_CHECKING:
    import antiphon

ANSWER_S: Final = 10.0

group(
    "client-metrics",
    "Subscriptions to metrics of Kafka's clients (KIP-714).",
    "Example: antiphon client-metrics list",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the subscription.")]


@command("client-metrics list", "antiphon client-metrics list --json")
def list_subscriptions(common: CommonOptions = COMMON) -> None:
    """List the subscriptions."""
    with common.connect() as db:
        found = _known(db)
    if common.as_json:
        print_json([_plain(one) for one in found])
    elif found:
        rows = [tuple(_plain(one).values()) for one in found]
        print_table(("NAME", "METRICS", "INTERVAL_MS", "MATCH"), rows, as_json=False)
    else:
        typer.echo(
            "nothing is asked of clients: `antiphon client-metrics put NAME --metrics ...` subscribes",
            err=True,
        )


@command("client-metrics describe", "antiphon client-metrics describe slow-producers")
def describe_subscription(
    name: NameArgument,
    common: CommonOptions = COMMON,
) -> None:
    """Show what a subscription says."""
    with common.connect() as db:
        found = _find(db, name)
    rows = [
        (setting, found.values.get(setting, default), "set" if setting in found.values else "default")
        for setting, default in DEFAULTS.items()
    ]
    print_table(("SETTING", "VALUE", "FROM"), rows, _plain(found), as_json=common.as_json)


@command(
    "client-metrics put",
    "antiphon client-metrics put slow-producers --metrics org.apache.kafka.producer. "
    "--interval 60000 --match client_id=orders-.*",
)
def put_subscription(
    name: NameArgument,
    metrics: Annotated[
        list[str],
        typer.Option("--metrics", help="Prefix of names of metrics; * for all of them; may be repeated."),
    ],
    interval_ms: Annotated[
        int | None,
        typer.Option(
            "--interval",
            metavar="MS",
            help=f"Milliseconds between two pushes of a client; {DEFAULTS[INTERVAL_MS]} by default.",
        ),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(
            "--match",
            metavar="ATTRIBUTE=REGEX",
            help="Only clients that match; may be repeated, and all have to match then. "
            f"ATTRIBUTE is one of {', '.join(CLIENT_ATTRIBUTES)}.",
        ),
    ] = None,
    common: CommonOptions = COMMON,
) -> None:
    """Make a subscription, or replace one: options that are not given get their defaults."""
    request = replaced(name, ",".join(metrics), interval_ms, ",".join(match or ()))
    common.administer(request)
    values = {setting: value for setting, value in request.config.items() if value is not None}
    made = _plain(Subscription(name, values))
    whose = f"of clients with {made['match']}" if made["match"] else "of every client"
    say(f"{name}: {made['metrics']} {whose}, every {made['interval_ms']} ms", made, as_json=common.as_json)


@command("client-metrics delete", "antiphon client-metrics delete slow-producers")
def delete_subscription(
    name: NameArgument,
    common: CommonOptions = COMMON,
) -> None:
    """Delete a subscription. Clients stop with what nobody else has subscribed to."""
    with common.connect() as db:
        found = _find(db, name)
        db.run(db.aio.administer(removal(name)))
    say(f"deleted: {name}", {"deleted": _plain(found)}, as_json=common.as_json)


def _known(db: "antiphon.Client") -> tuple[Subscription, ...]:
    return db.run(db.aio.coordinators.subscriptions(timeout_s=ANSWER_S))


def _find(db: "antiphon.Client", name: str) -> Subscription:
    known = _known(db)
    found = next((one for one in known if one.name == name), None)
    if found is None:
        there = ", ".join(one.name for one in known[:20]) or "none"
        raise InvalidRequestError(
            f"there is no subscription {name!r}; there are {there}", unknown="subscription"
        )
    return found


def _plain(one: Subscription) -> dict[str, object]:
    """For programs; what it does not say is as by default."""
    values = {**DEFAULTS, **one.values}
    return {
        "name": one.name,
        "metrics": values[METRICS],
        "interval_ms": int(values[INTERVAL_MS]),
        "match": values[MATCH],
    }
