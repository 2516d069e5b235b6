"""Forms about users, access control lists and quotas: what is asked for, and what of the API that comes to.

A field has a name of the API's types, so what was filled in is held against those. A form of one entry, or of one quota,
stands for a request that could name many.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from antiphon.errors import InvalidRequestError
from antiphon.http.api.asked import AclEntry, AclsBody, QuotaBody
from antiphon.http.pages import access_plans
from antiphon.http.pages.access_plans import Facts, Told
from antiphon.http.pages.forms import Field, converted
from antiphon.model.access import ANY, AccessBook, Operation, Permission, Resource
from antiphon.model.quotas import DEFAULT, LIMITS, OF_ADDRESSES, OF_CLIENTS, OF_USERS, WHOLE, Quota

PARTS: Final = ("user", "client_id", "ip")
SHOWN: Final = "shown"  # the limits that a form was opened with: what is empty then is to be taken away
OF_LIMITS: Final = {
    "producer_byte_rate": "bytes a second that are written",
    "consumer_byte_rate": "bytes a second that are read",
    "request_percentage": "percent of the time of a node's event loop; 100: all of it",
    "controller_mutation_rate": "partitions a second that are made and removed",
    "connection_creation_rate": "new connections a second; of addresses only",
    "connections": "open at the same time; of users without a client id only",
}
_PATTERNS: Final = (("literal", "this very name"), ("prefixed", "every name that begins with it"))
_RESOURCES: Final = {"transactional_id": "transactional id", "group": "consumer or share group"}


class AccessForm(NamedTuple):
    """What is special about one of these forms.

    Attributes:
        about: says what it does, given what is in it.
        plan: says what would change. Raises InvalidRequestError where there is nothing to change.
        fields, body: what is asked for, and what that comes to; None: as the operation's types say.
    """

    about: Callable[[Mapping[str, str]], str]
    plan: Callable[[Facts, Any, Any], Told]
    fields: Callable[[Mapping[str, str]], list[Field]] | None = None
    body: Callable[[AccessBook, Mapping[str, str]], msgspec.Struct] | None = None


# -- entries of access control lists ------------------------------------------------------------------------------


def _entry_fields(given: Mapping[str, str]) -> list[Field]:
    operations = [(each.value, _operation(each)) for each in Operation]
    resources = [(each.value, _RESOURCES.get(each.value, each.value)) for each in Resource]
    return [
        Field(
            "principal",
            "text",
            f"who: User:ann, or User:{ANY} for everybody",
            given.get("principal", ""),
            required=True,
        ),
        Field(
            "permission",
            "choice",
            "a denial wins over all that is allowed",
            given.get("permission", ""),
            tuple((each.value, each.value) for each in Permission),
        ),
        Field("operation", "choice", "", _known(given.get("operation", "")), tuple(operations)),
        Field("resource", "choice", "on what", given.get("resource", ""), tuple(resources)),
        Field(
            "name", "text", f"of the resource; {ANY}: all of them; empty: the cluster", given.get("name", "")
        ),
        Field("pattern", "choice", "how the name is meant", given.get("pattern", ""), _PATTERNS),
        Field(
            "host", "text", f"the address that they come from; {ANY}: from everywhere", given.get("host", ANY)
        ),
    ]


def _known(operation: str) -> str:
    """What a link says, if there is such an operation. A browser would take the first of the list: everything."""
    return operation if operation in {each.value for each in Operation} else Operation.READ.value


def _fixed_entry(given: Mapping[str, str]) -> list[Field]:
    """An entry that a link named is shown in words; of one that nobody named, all is asked for."""
    fixed = given.keys() >= set(AclEntry.__struct_fields__)
    return [one._replace(fixed=fixed) for one in _entry_fields(given)]


def _operation(operation: Operation) -> str:
    return "ALL: everything" if operation is Operation.ALL else operation.value.upper()


def _entry(given: Mapping[str, str]) -> AclEntry:
    return converted({name: given[name] for name in AclEntry.__struct_fields__ if given.get(name)}, AclEntry)


def _added(_book: AccessBook, given: Mapping[str, str]) -> msgspec.Struct:
    return AclsBody(add=[_entry(_stripped(given))])


def _stripped(given: Mapping[str, str]) -> dict[str, str]:
    """What somebody typed; what there is already is named as it is."""
    return {name: text.strip() for name, text in given.items()}


def _removed(_book: AccessBook, given: Mapping[str, str]) -> msgspec.Struct:
    return AclsBody(remove=[_entry(given)])


def _about_entry(given: Mapping[str, str]) -> str:
    try:
        return f"Removes this entry: {access_plans.entry(_entry(given))}."
    except InvalidRequestError:
        return "Removes the entry that says exactly this."


# -- quotas -------------------------------------------------------------------------------------------------------


def _whose_fields(given: Mapping[str, str], *, fixed: bool) -> list[Field]:
    about = {
        "user": f"name of a user; {ANY}: each user without a quota of its own",
        "client_id": f"what a program calls itself, of the user or of anybody; {ANY}: each",
        "ip": f"an address, without user and client id; {ANY}: each",
    }
    return [Field(name, "text", about[name], given.get(name, ""), fixed=fixed) for name in PARTS]


def _quota_fields(given: Mapping[str, str]) -> list[Field]:
    fixed = SHOWN in given
    fields = _whose_fields(given, fixed=fixed)
    fields += [
        Field(name, "number", OF_LIMITS[name], given.get(name, ""), least=0, fractions=name not in WHOLE)
        for name in (_possible(given) if fixed else LIMITS)
    ]
    return [*fields, Field(SHOWN, "text", "", given[SHOWN], fixed=True)] if fixed else fields


def _fixed_quota(given: Mapping[str, str]) -> list[Field]:
    return _whose_fields(given, fixed=any(given.get(name) for name in PARTS))


def _possible(given: Mapping[str, str]) -> tuple[str, ...]:
    if given.get("ip"):
        return OF_ADDRESSES
    return OF_CLIENTS if given.get("client_id") else OF_USERS


def _whose(given: Mapping[str, str]) -> dict[str, str | None]:
    texts = {name: given.get(name, "") for name in PARTS}
    return {name: None if not text else DEFAULT if text == ANY else text for name, text in texts.items()}


def _entity(given: Mapping[str, str]) -> Quota:
    whose = _whose(given)
    return Quota(whose["user"], whose["client_id"], whose["ip"])


def _set_limits(_book: AccessBook, given: Mapping[str, str]) -> msgspec.Struct:
    """What is empty stays as it is, but for what the form was opened with."""
    shown = given.get(SHOWN, "").split(",")
    given = given if SHOWN in given else _stripped(given)
    limits: dict[str, str | None] = {}
    for name in LIMITS:
        text = given.get(name, "").strip()
        if text:
            limits[name] = text
        elif name in shown:
            limits[name] = None
    if not limits:
        raise InvalidRequestError("fill in one limit at least")
    return converted(_whose(given) | {"limits": limits}, QuotaBody)


def _no_limits(book: AccessBook, given: Mapping[str, str]) -> msgspec.Struct:
    known = book.quotas.get(_entity(given).key)
    if known is None:
        raise InvalidRequestError(f"there is no quota of {access_plans.whose(_entity(given))}")
    return converted(_whose(given) | {"limits": dict.fromkeys(known.limits)}, QuotaBody)


def _about_quota(given: Mapping[str, str]) -> str:
    if SHOWN in given:
        return (
            f"Changes the quota of {access_plans.whose(_entity(given))}. What is left empty is not limited."
        )
    return (
        "Limits what a user, a program (client id), both together, or an address may ask of each node. "
        "A limit that is left empty stays as it is."
    )


def _about_removal(given: Mapping[str, str]) -> str:
    if any(given.get(name) for name in PARTS):
        return f"Removes the quota of {access_plans.whose(_entity(given))}, with all of its limits."
    return "Removes all limits of a user, a client id, both together, or an address."


# -- all of them --------------------------------------------------------------------------------------------------

_NEXT: Final = "The plan comes first, and asks for the password."

ACCESS_FORMS: Final = {
    "add_user": AccessForm(
        lambda _: f"Adds a user, who logs in with a name and a password. {_NEXT}", access_plans.of_new_user
    ),
    "set_password": AccessForm(
        lambda _: f"Gives a user another password. {_NEXT}", access_plans.of_new_password
    ),
    "remove_user": AccessForm(
        lambda _: "Removes a user, and hangs up on whoever has logged in as that.",
        access_plans.of_removed_user,
    ),
    "add_access_entry": AccessForm(
        lambda _: "Allows or denies somebody something. What no entry allows is denied.",
        access_plans.of_entries,
        _entry_fields,
        _added,
    ),
    "remove_access_entry": AccessForm(_about_entry, access_plans.of_entries, _fixed_entry, _removed),
    "set_quota": AccessForm(_about_quota, access_plans.of_quota, _quota_fields, _set_limits),
    "remove_quota": AccessForm(_about_removal, access_plans.of_quota, _fixed_quota, _no_limits),
}
"""By the name of the action. Each takes ALTER on the cluster."""


def quota_link(quota: Quota, *, limits: bool) -> dict[str, str]:
    """What a link to a form says of a quota."""
    parts = {name: part or ANY for name in PARTS if (part := getattr(quota, name)) is not None}
    if not limits:
        return parts
    told = {name: access_plans.plain(limit) for name, limit in quota.limits.items()}
    return parts | told | {SHOWN: ",".join(told)}
