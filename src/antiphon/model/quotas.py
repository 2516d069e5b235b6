"""Quotas: how much a user, a program (client id) or an address may ask of each node. The names and rules are Kafka's, but
for `connections`, which Kafka does not have.

An entity is a user, a client id, both together, or an IP address. The empty name stands for everyone of its type that
has no quota of its own: each of those gets the limit for itself.
"""

import hashlib
import ipaddress
import math
from typing import Final

import msgspec

from antiphon.errors import InvalidRequestError

DEFAULT: Final = ""  # in the place of a name: everyone without one of its own
NAME_BYTES_MAX: Final = 255
LIMIT_MAX: Final = 1e15
RESERVED: Final = "__"  # the nodes themselves

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
CONNECTIONS: Final = "connections"
OF_CLIENTS: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
OF_USERS: Final = (*OF_CLIENTS, CONNECTIONS)  # whatever their programs call themselves
OF_ADDRESSES: Final = (CONNECTION_CREATION_RATE,)
LIMITS: Final = (*OF_CLIENTS, *OF_ADDRESSES, CONNECTIONS)
# No fractions
WHOLE: Final = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE, CONNECTIONS})


class Quota(msgspec.Struct, frozen=True, array_like=True):
    """The limits of one entity on each node. Of a name: None: it is no part of the entity, `DEFAULT`: everyone. Of a limit:
    None: the entity says nothing of it.

    Attributes:
        producer_byte_rate, consumer_byte_rate: bytes a second that are written and read.
        request_percentage: share of the time of the node's event loop, 100.0: all of it.
        controller_mutation_rate: partitions a second that are created and deleted.
        connection_creation_rate: connections a second, of addresses only.
        connections: that are open at the same time, of users only.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    producer_byte_rate: float | None = None
    consumer_byte_rate: float | None = None
    request_percentage: float | None = None
    controller_mutation_rate: float | None = None
    connection_creation_rate: float | None = None
    connections: float | None = None

    @property
    def entity(self) -> tuple[str | None, str | None, str | None]:
        """Whom it is about: user, client id, address."""
        return self.user, self.client_id, self.ip

    @property
    def key(self) -> str:
        """What it is recorded under: a digest of the entity."""
        parts = ["-" if name is None else f"={name}" for name in self.entity]
        return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()

    @property
    def limits(self) -> dict[str, float]:
        """What it limits."""
        found = ((name, getattr(self, name)) for name in LIMITS)
        return {name: limit for name, limit in found if limit is not None}

    def changed(self, other: "Quota", gone: tuple[str, ...]) -> "Quota":
        """With the limits of `other`, and without those that are `gone`."""
        limits: dict[str, float | None] = {**dict.fromkeys(gone), **other.limits}
        return msgspec.structs.replace(self, **limits)


def check_quota(quota: Quota, gone: tuple[str, ...] = ()) -> None:
    """Raise InvalidRequestError for an entity that cannot be, or for limits that it cannot have."""
    user, client_id, ip = quota.entity
    if user is None and client_id is None and ip is None:
        raise InvalidRequestError("a quota is for a user, a client id, both together, or an address")
    if ip is not None and (user is not None or client_id is not None):
        raise InvalidRequestError("a quota of an address is for no user and no client id")
    _check_name("user", user)
    _check_name("client id", client_id)
    if user is not None and user.startswith(RESERVED):
        raise InvalidRequestError(f"names of users do not begin with {RESERVED!r}")
    if ip and address(ip) != ip:
        raise InvalidRequestError(f"{ip!r} is no IP address (as 192.0.2.7 or 2001:db8::7)")
    possible = OF_ADDRESSES if ip is not None else OF_USERS if client_id is None else OF_CLIENTS
    for name in (*quota.limits, *gone):
        if name not in possible:
            raise InvalidRequestError(
                f"{name!r} is no limit of such an entity; there are {', '.join(possible)}"
            )
    for name, limit in quota.limits.items():
        if not (math.isfinite(limit) and 0 < limit <= LIMIT_MAX):
            raise InvalidRequestError(f"{name} is above 0 and at most {LIMIT_MAX:.0e}, not {limit}")
        if name in WHOLE and limit != int(limit):
            raise InvalidRequestError(f"{name} is a whole number, not {limit}")


def address(host: str) -> str:
    """An IP address in the one form that quotas have; empty: it is none."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found)


def _check_name(what: str, name: str | None) -> None:
    if name and (len(name.encode()) > NAME_BYTES_MAX or not name.isprintable()):
        raise InvalidRequestError(f"a {what} has at most {NAME_BYTES_MAX} bytes of printable characters")
