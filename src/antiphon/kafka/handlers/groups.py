"""FindCoordinator, and membership: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from typing import Final

from antiphon import system
from antiphon.errors import AntiphonError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.types import Join, Sync
from antiphon.kafka.handlers.refusals import RefusedError, coordinator_errors, telling
from antiphon.kafka.handlers.rights import check, sees
from antiphon.kafka.messages import cluster as cm
from antiphon.kafka.messages import groups as m
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.model.access import Operation, Resource
from antiphon.security.authorizer import Rights
from antiphon.transactions.coordinator import TransactionCoordinator

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
GROUP_ID_BYTES_MAX: Final = 1024
CLIENT_ID_MAX: Final = 256  # characters of a client's name that its groups keep
FIRST_ID_FIRST: Final = 4  # JoinGroup version from which a member is told its id before it joins
FIRST_SKIP_ASSIGNMENT: Final = 9
FIRST_PROTOCOL_TYPE: Final = 7


class GroupHandler:
    """Takes requests to the coordinator's calls, and their answers back."""

    def __init__(
        self,
        gateway: Gateway,
        cache: MetadataCache,
        coordinator: GroupCoordinator,
        transactions: TransactionCoordinator,
    ) -> None:
        self._gateway = gateway
        self._cache = cache
        self._coordinator = coordinator
        self._transactions = transactions

    # -- FindCoordinator ------------------------------------------------------------------------------------------

    async def find_coordinator(
        self, request: cm.FindCoordinatorRequest, context: RequestContext
    ) -> cm.FindCoordinatorResponse:
        """The node that leads the shard of a group, or of a transactional id."""
        if context.version >= 4:
            found = [
                await self._locate(key, request.key_type, context.rights)
                async for key in context.turn_budget.each(request.coordinator_keys)
            ]
            return cm.FindCoordinatorResponse(coordinators=found)
        one = await self._locate(request.key, request.key_type, context.rights)
        return cm.FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    async def _locate(self, key: str, key_type: int, rights: Rights) -> cm.FoundCoordinator:
        found = cm.FoundCoordinator(key=key)
        with telling(found):
            if key_type not in {GROUP_KEY, TRANSACTION_KEY}:
                reason = f"coordinators of type {key_type} do not exist here"
                raise RefusedError(code.INVALID_REQUEST, reason)
            of_group = key_type == GROUP_KEY
            what = "group" if of_group else "transactional id"
            if not _is_group_id(key):
                wrong = code.INVALID_GROUP_ID if of_group else code.INVALID_REQUEST
                raise RefusedError(wrong, f"not a name for a {what}")
            resource = Resource.GROUP if of_group else Resource.TRANSACTIONAL_ID
            check(
                rights, Operation.DESCRIBE, resource, key, f"{rights.principal} may not describe this {what}"
            )
            try:
                shard = await (self._coordinator if of_group else self._transactions).locate(key)
            except AntiphonError as error:
                raise RefusedError(code.COORDINATOR_NOT_AVAILABLE, error.message) from error
            node = self._cache.endpoints.get(self._cache.leader_of(shard))
            if node is None:
                raise RefusedError(code.COORDINATOR_NOT_AVAILABLE, "the shard has no leader now")
            found.node_id, found.host, found.port = node.node_id, node.host, node.port
        return found

    # -- membership -----------------------------------------------------------------------------------------------

    async def join(self, request: m.JoinGroupRequest, context: RequestContext) -> m.JoinGroupResponse:
        """JoinGroup."""
        version, client_id = context.version, context.client_id[:CLIENT_ID_MAX]
        if not _is_group_id(request.group_id):
            raise RefusedError(code.INVALID_GROUP_ID)
        check(context.rights, Operation.READ, Resource.GROUP, request.group_id)
        rebalance_ms = request.rebalance_timeout_ms
        join = Join(
            request.member_id,
            request.group_instance_id,
            client_id,
            context.client_host,
            request.session_timeout_ms,
            rebalance_ms if rebalance_ms >= 0 else request.session_timeout_ms,
            request.protocol_type,
            tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            f"{request.group_instance_id or client_id}-{system.new_uuid()}",
            id_first=version >= FIRST_ID_FIRST,
            can_skip_assignment=version >= FIRST_SKIP_ASSIGNMENT,
        )
        with coordinator_errors():
            joined = await self._coordinator.join(
                request.group_id, join, lambda name: sees(self._gateway, context.rights, name)
            )
        return m.JoinGroupResponse(
            error_code=joined.error_code,
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name
            if joined.protocol_name is not None or version >= FIRST_PROTOCOL_TYPE
            else "",
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=[
                m.JoinedMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
                for member_id, instance_id, metadata in joined.members
            ],
        )

    async def sync(self, request: m.SyncGroupRequest, context: RequestContext) -> m.SyncGroupResponse:
        """SyncGroup."""
        check(context.rights, Operation.READ, Resource.GROUP, request.group_id)
        sync = Sync(
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            tuple((each.member_id, each.assignment) for each in request.assignments),
        )
        with coordinator_errors():
            synced = await self._coordinator.sync(request.group_id, sync)
        return m.SyncGroupResponse(
            error_code=synced.error_code,
            protocol_type=synced.protocol_type,
            protocol_name=synced.protocol_name,
            assignment=synced.assignment,
        )

    async def heartbeat(self, request: m.HeartbeatRequest, context: RequestContext) -> m.HeartbeatResponse:
        """Heartbeat."""
        check(context.rights, Operation.READ, Resource.GROUP, request.group_id)
        with coordinator_errors():
            error = await self._coordinator.heartbeat(
                request.group_id, request.member_id, request.group_instance_id, request.generation_id
            )
        return m.HeartbeatResponse(error_code=error)

    async def leave(self, request: m.LeaveGroupRequest, context: RequestContext) -> m.LeaveGroupResponse:
        """LeaveGroup."""
        check(context.rights, Operation.READ, Resource.GROUP, request.group_id)
        many = context.version >= 3
        leaving = request.members if many else [m.LeavingMember(member_id=request.member_id)]
        left = []
        with coordinator_errors():
            for each in leaving:
                error = await self._coordinator.leave(
                    request.group_id, each.member_id, each.group_instance_id
                )
                left.append(
                    m.LeftMember(
                        member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error
                    )
                )
        return m.LeaveGroupResponse(error_code=code.NONE if many else left[0].error_code, members=left)


def _is_group_id(group_id: str) -> bool:
    return 0 < len(group_id.encode()) <= GROUP_ID_BYTES_MAX
