"""`antiphon quota`: how much a user, a program or an address may ask of each node."""

from typing import Annotated

import msgspec
import typer

from antiphon.cli.declare import COMMON, CommonOptions, command, group
from antiphon.cli.output import print_lines, say
from antiphon.errors import InvalidRequestError
from antiphon.model.quotas import DEFAULT, LIMITS, Quota, address, check_quota
from antiphon.model.requests import AlterQuota

EVERYONE = "*"  # as a name, on the command line

group("quota", "Quotas: how much a client may ask of each node.", "Example: antiphon quota list")

UserOption = Annotated[str | None, typer.Option("--user", help="Name of a user; * for every other one.")]
ClientOption = Annotated[
    str | None, typer.Option("--client-id", help="What a program calls itself; * for every other one.")
]
IpOption = Annotated[str | None, typer.Option("--ip", help="IP address; * for every other one.")]


@command("quota set", "antiphon quota set --user alice --producer-byte-rate 1000000")
def quota_set(
    user: UserOption = None,
    client_id: ClientOption = None,
    ip: IpOption = None,
    producer_byte_rate: Annotated[float | None, typer.Option(help="Bytes a second that are written.")] = None,
    consumer_byte_rate: Annotated[float | None, typer.Option(help="Bytes a second that are read.")] = None,
    request_percentage: Annotated[
        float | None, typer.Option(help="Share of the time of a node's event loop, in percent.")
    ] = None,
    controller_mutation_rate: Annotated[
        float | None, typer.Option(help="Partitions a second that are created and deleted.")
    ] = None,
    connection_creation_rate: Annotated[
        float | None, typer.Option(help="New connections a second; of an address only.")
    ] = None,
    connections: Annotated[
        float | None, typer.Option(help="Connections that are open at the same time; of a user only.")
    ] = None,
    common: CommonOptions = COMMON,
) -> None:
    """Set limits of a user, of a client id, of both together, or of an address. Its other limits stay."""
    quota = msgspec.structs.replace(
        _entity(user, client_id, ip),
        producer_byte_rate=producer_byte_rate,
        consumer_byte_rate=consumer_byte_rate,
        request_percentage=request_percentage,
        controller_mutation_rate=controller_mutation_rate,
        connection_creation_rate=connection_creation_rate,
        connections=connections,
    )
    check_quota(quota)
    if not quota.limits:
        raise InvalidRequestError(f"name a limit: {', '.join(map(_option, LIMITS))}", unknown="words")
    common.administer(AlterQuota(quota))
    say(_text(quota), _plain(quota), as_json=common.as_json)


@command("quota remove", "antiphon quota remove --user alice --limit producer_byte_rate")
def quota_remove(
    user: UserOption = None,
    client_id: ClientOption = None,
    ip: IpOption = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", help="Which limit, as `list` names it; all by default.")
    ] = None,
    common: CommonOptions = COMMON,
) -> None:
    """Take limits away. What the next wider quota says counts then."""
    entity = _entity(user, client_id, ip)
    gone = tuple(name.replace("-", "_") for name in limit or ())
    check_quota(entity, gone)
    with common.connect() as db:
        known = {quota.key: quota for quota in db.run(db.aio.access()).quotas}
        found = known.get(entity.key)
        lacking = [name for name in gone if found is None or name not in found.limits]
        if found is None or lacking:
            what = " ".join(["quota", *lacking])
            raise InvalidRequestError(f"there is no {what} of {_whose(entity)}", unknown="quota")
        gone = gone or tuple(found.limits)
        db.run(db.aio.administer(AlterQuota(entity, gone)))
    shown = _plain(entity) | {"removed": list(gone)}
    say(f"removed: {_whose(entity)}: {', '.join(gone)}", shown, as_json=common.as_json)


@command("quota list", "antiphon quota list")
def quota_list(common: CommonOptions = COMMON) -> None:
    """List the quotas."""
    found = sorted(common.access().quotas, key=_text)
    none = "there are no quotas: `antiphon quota set` sets one"
    print_lines(list(map(_text, found)), list(map(_plain, found)), none=none, as_json=common.as_json)


def _entity(user: str | None, client_id: str | None, ip: str | None) -> Quota:
    if "" in {user, client_id, ip}:
        raise InvalidRequestError(f"the name is empty; {EVERYONE!r} stands for everyone")
    names = [DEFAULT if name == EVERYONE else name for name in (user, client_id, ip)]
    if names[2]:
        names[2] = address(names[2]) or names[2]
    entity = Quota(names[0], names[1], names[2])
    check_quota(entity)
    return entity


def _option(limit: str) -> str:
    return "--" + limit.replace("_", "-")


def _whose(quota: Quota) -> str:
    names = zip(("user", "client-id", "ip"), quota.entity, strict=True)
    return " ".join(f"{kind} {name or EVERYONE}" for kind, name in names if name is not None)


def _plain(quota: Quota) -> dict[str, object]:
    """The same for programs; an entity that is not named is null."""
    names = zip(("user", "client_id", "ip"), quota.entity, strict=True)
    whose = {kind: None if name is None else name or EVERYONE for kind, name in names}
    return whose | {"limits": dict(quota.limits)}


def _text(quota: Quota) -> str:
    """One line for people."""
    limits = ", ".join(f"{name} {limit:.15g}" for name, limit in quota.limits.items())
    return f"{_whose(quota)}: {limits}"
