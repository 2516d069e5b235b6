"""A registry of services: which instances are there, and where."""

from antiphon.client.aio import AsyncClient
from antiphon.client.session import AsyncSession
from antiphon.errors import InvalidRequestError, KeyNotFoundError


class AsyncServiceRegistry:
    """Instances of services, each there as long as its session.

    async with db.session() as session:
        await AsyncServiceRegistry(db, "services").register("mail", "host-7", b"10.0.0.7:25", session)

    Guaranteed: `instances` has every instance whose registration was acknowledged and whose session has not ended; one
    that is killed or cut off goes within its session's time-out and a moment; a fail-over removes none.

    Not guaranteed: that an instance which is listed answers. It may have died within the time-out, and its client lives as
    long as its process, whatever that is doing. A session that is lost takes its registrations with it: register again under
    a new one (`session.when_lost`).
    """

    def __init__(self, db: AsyncClient, table: str) -> None:
        self._table = db.table(table)

    async def register(self, service: str, instance: str, address: bytes, session: AsyncSession) -> None:
        """List an instance, or change its address. Raises SessionNotFoundError."""
        await self._table.put(_key(service, instance), address, session=session)

    async def deregister(self, service: str, instance: str) -> None:
        """List an instance no more, whoever had registered it; it may be gone already."""
        try:
            await self._table.delete(_key(service, instance))
        except KeyNotFoundError:
            return

    async def instances(self, service: str) -> dict[str, bytes]:
        """Addresses by instance, by a linearizable read of each shard."""
        prefix = f"{_checked(service)}/"
        found: dict[str, bytes] = {}
        async for row in self._table.scan(prefix, f"{service}0"):
            found[row.key[len(prefix.encode()) :].decode()] = row.value or b""
        return found


def _key(service: str, instance: str) -> str:
    return f"{_checked(service)}/{instance}"


def _checked(service: str) -> str:
    if not service or "/" in service:
        raise InvalidRequestError(f"the name of a service has no slash and is not empty, got {service!r}")
    return service
