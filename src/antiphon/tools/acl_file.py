"""Files of access control lists: `antiphon acl apply` follows one, and `antiphon acl list --toml` writes one."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from antiphon.errors import InvalidRequestError
from antiphon.model.access import ACLS_MAX, ANY, CLUSTER_NAME, Acl, Operation, Pattern, Permission, Resource

FILE_BYTES_MAX: Final = 16 * 1024 * 1024


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[acl]]`: an entry for each of its operations."""

    principal: str
    operation: Operation | list[Operation]
    resource: Resource = Resource.TOPIC
    name: str = ""
    pattern: Pattern = Pattern.LITERAL
    permission: Permission = Permission.ALLOW
    host: str = ANY


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    acl: list[_Entry] = []


def entry(
    principal: str,
    resource: Resource,
    name: str,
    operation: Operation,
    pattern: Pattern,
    permission: Permission,
    host: str,
) -> Acl:
    """An entry; the one resource of type cluster needs no name. Raises InvalidRequestError without a name."""
    if resource is Resource.CLUSTER:
        name = CLUSTER_NAME
    if not name:
        raise InvalidRequestError("the resource has no name; '*' stands for all of them")
    return Acl(principal, resource, name, operation, pattern, permission, host)


def read_acls(path: Path) -> list[Acl]:
    """The entries of a file, each once. Raises InvalidRequestError that says what is wrong, and where."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise InvalidRequestError(f"{path} has more than {FILE_BYTES_MAX >> 20} MiB")
        found = msgspec.convert(tomllib.loads(data.decode()), _File)
    except OSError as error:
        raise InvalidRequestError(f"cannot read {path}: {error.strerror}", unknown="acl file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequestError(f"{path} is not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{path}: {error}") from None
    acls: list[Acl] = []
    for number, one in enumerate(found.acl, 1):
        operations = one.operation if isinstance(one.operation, list) else [one.operation]
        if not operations:
            raise InvalidRequestError(f"{path}: entry {number} has no operation")
        try:
            acls += [
                entry(one.principal, one.resource, one.name, each, one.pattern, one.permission, one.host)
                for each in operations
            ]
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{path}: entry {number}: {error.message}") from None
    if len(acls) > ACLS_MAX:
        raise InvalidRequestError(f"{path} has {len(acls)} entries; a cluster has at most {ACLS_MAX}")
    return list(dict.fromkeys(acls))


def to_toml(acls: Iterable[Acl]) -> str:
    """A file that `read_acls` reads: entries that differ in their operation only are one."""
    operations: dict[Acl, list[str]] = {}
    for acl in sorted(acls):
        alike = msgspec.structs.replace(acl, operation=Operation.ALL)
        operations.setdefault(alike, []).append(str(acl.operation))
    return "\n".join(_section(acl, names) for acl, names in operations.items())


def _section(acl: Acl, operations: list[str]) -> str:
    from antiphon.node.config import toml_value

    said: dict[str, str | list[str]] = {"principal": acl.principal, "resource": acl.resource}
    if acl.resource is not Resource.CLUSTER:
        said["name"] = acl.name
    said["operation"] = operations[0] if len(operations) == 1 else operations
    defaults = {"pattern": Pattern.LITERAL, "permission": Permission.ALLOW, "host": ANY}
    said |= {key: getattr(acl, key) for key, default in defaults.items() if getattr(acl, key) != default}
    return "\n".join(["[[acl]]", *(f"{key} = {toml_value(value)}" for key, value in said.items())]) + "\n"
