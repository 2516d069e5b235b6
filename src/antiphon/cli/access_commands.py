"""`antiphon user` and `antiphon acl`: who may log in, and who may do what."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command, group
from antiphon.cli.output import print_json, print_lines, say, usage
from antiphon.errors import InvalidRequestError
from antiphon.model.access import ANY, Acl, Operation, Pattern, Permission, Resource
from antiphon.model.requests import AlterAcls, AlterUser
from antiphon.tools import acl_file

group("user", "Users, who log in with a password (SCRAM, PLAIN).", "Example: antiphon user list")
group("acl", "Access control lists: who may do what.", "Example: antiphon acl list")

PrincipalOption = Annotated[str, typer.Option("--principal", help="User:alice, or User:* for everybody.")]
ResourceOption = Annotated[Resource, typer.Option("--resource", help="Kind of what the entry is about.")]
NameOption = Annotated[str, typer.Option("--name", help="Name of the resource; * for all of them.")]
OperationOption = Annotated[Operation, typer.Option("--operation", help="What may be done.")]
PatternOption = Annotated[
    Pattern,
    typer.Option("--pattern", help="literal: the whole name; prefixed: all names that begin like this."),
]
HostOption = Annotated[str, typer.Option("--host", help="Address that the client comes from; * for any.")]


def read_password(file: Path | None, *, from_stdin: bool, generate: bool) -> tuple[str, bool]:
    """A password, and whether it was made up here. Raises InvalidRequestError; never read from the command line."""
    if generate:
        from antiphon.security.passwords import new_password

        return new_password(), True
    if file is not None:
        try:
            found = file.read_text().rstrip("\n")
        except OSError as error:
            raise InvalidRequestError(f"cannot read {file}: {error.strerror}") from None
    elif from_stdin or not sys.stdin.isatty():
        found = sys.stdin.readline().rstrip("\n")
    else:
        found = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    if not found:
        raise InvalidRequestError("the password is empty", unknown="password")
    return found, False


@command("user add", "antiphon user add alice --generate")
def user_add(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    generate: Annotated[
        bool, typer.Option("--generate", help="Make up a password, and print it once.")
    ] = False,
    password_file: Annotated[Path | None, typer.Option(help="File with the password.")] = None,
    password_stdin: Annotated[bool, typer.Option(help="Read the password from standard input.")] = False,
    common: CommonOptions = COMMON,
) -> None:
    """Add a user, or set the password of one. The password stays here: the cluster gets keys that prove it."""
    from antiphon.security.passwords import credentials

    password, generated = read_password(password_file, from_stdin=password_stdin, generate=generate)
    common.administer(AlterUser(name, credentials(password)))
    told = f"; the password, told once: {password}" if generated else ""
    shown = {"user": name} | ({"password": password} if generated else {})
    say(f"user {name!r} is there{told}", shown, as_json=common.as_json)


@command("user list", "antiphon user list")
def user_list(common: CommonOptions = COMMON) -> None:
    """List the users and their mechanisms."""
    found = common.access().users
    print_lines(
        [f"{name}  {', '.join(mechanisms)}" for name, mechanisms in found],
        [{"user": name, "mechanisms": list(mechanisms)} for name, mechanisms in found],
        none="there are no users: `antiphon user add NAME` adds one",
        as_json=common.as_json,
    )


@command("user remove", "antiphon user remove alice")
def user_remove(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    common: CommonOptions = COMMON,
) -> None:
    """Remove a user. Its connections end within seconds; entries that name it stay."""
    common.administer(AlterUser(name, remove=True))
    say(f"user {name!r} is gone", {"user": name, "removed": True}, as_json=common.as_json)


@command("acl add", "antiphon acl add --principal User:alice --name orders --operation read")
def acl_add(
    principal: PrincipalOption,
    operation: OperationOption,
    resource: ResourceOption = Resource.TOPIC,
    name: NameOption = "",
    pattern: PatternOption = Pattern.LITERAL,
    host: HostOption = ANY,
    deny: Annotated[bool, typer.Option("--deny", help="Forbid it; this wins over what allows it.")] = False,
    common: CommonOptions = COMMON,
) -> None:
    """Add an entry."""
    acl = acl_file.entry(principal, resource, name, operation, pattern, _permission(deny=deny), host)
    common.administer(AlterAcls((acl,)))
    say(_text(acl), _plain(acl), as_json=common.as_json)


@command("acl remove", "antiphon acl remove --principal User:alice --name orders --operation read")
def acl_remove(
    principal: PrincipalOption,
    operation: OperationOption,
    resource: ResourceOption = Resource.TOPIC,
    name: NameOption = "",
    pattern: PatternOption = Pattern.LITERAL,
    host: HostOption = ANY,
    deny: Annotated[bool, typer.Option("--deny", help="An entry that forbids.")] = False,
    common: CommonOptions = COMMON,
) -> None:
    """Remove the entry that says exactly this."""
    acl = acl_file.entry(principal, resource, name, operation, pattern, _permission(deny=deny), host)
    if acl not in common.access().acls:
        raise InvalidRequestError(f"there is no entry: {_text(acl)}", unknown="acl")
    common.administer(AlterAcls(remove=(acl,)))
    say(f"removed: {_text(acl)}", _plain(acl) | {"removed": True}, as_json=common.as_json)


@command("acl list", "antiphon acl list --toml > acls.toml")
def acl_list(
    toml: Annotated[bool, typer.Option("--toml", help="Print a file for `antiphon acl apply`.")] = False,
    common: CommonOptions = COMMON,
) -> None:
    """List the entries."""
    if toml and common.as_json:
        usage("give --toml or --json, not both")
    found = common.access().acls
    if toml:
        typer.echo(acl_file.to_toml(found), nl=False)
        return
    none = "there are no entries: `antiphon acl add` adds one"
    print_lines(list(map(_text, found)), list(map(_plain, found)), none=none, as_json=common.as_json)


@command("acl apply", "antiphon acl apply acls.toml --prune --dry-run")
def acl_apply(
    file: Annotated[
        Path, typer.Argument(help="TOML with [[acl]] tables, as `antiphon acl list --toml` prints.")
    ],
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove the entries that are not in the file.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and stop.")] = False,
    common: CommonOptions = COMMON,
) -> None:
    """Add the entries of a file that the cluster lacks, all in one step; with --prune the file is all there is."""
    wanted = acl_file.read_acls(file)
    known = common.access().acls
    there, named = set(known), set(wanted)
    added = tuple(acl for acl in wanted if acl not in there)
    removed = tuple(acl for acl in known if acl not in named) if prune else ()
    if (added or removed) and not dry_run:
        common.administer(AlterAcls(added, removed))
    kept = len(known) - len(removed)
    if common.as_json:
        changes = {"added": [_plain(acl) for acl in added], "removed": [_plain(acl) for acl in removed]}
        print_json(changes | {"kept": kept, "applied": not dry_run})
        return
    for sign, changed in (("+", added), ("-", removed)):
        for acl in changed:
            typer.echo(f"{sign} {_text(acl)}")
    would = "would be " if dry_run else ""
    typer.echo(f"{len(added)} {would}added, {len(removed)} {would}removed, {kept} stay")


def _permission(*, deny: bool) -> Permission:
    return Permission.DENY if deny else Permission.ALLOW


def _plain(acl: Acl) -> dict[str, str]:
    """The same for programs, by the names of the options."""
    names = ("permission", "principal", "operation", "resource", "name", "pattern", "host")
    return {name: str(getattr(acl, name)) for name in names}


def _text(acl: Acl) -> str:
    """One line for people."""
    name = f"{acl.name}..." if acl.pattern is Pattern.PREFIXED else acl.name
    return f"{acl.permission} {acl.principal} to {acl.operation} {acl.resource} {name} from {acl.host}"
