"""Access control lists and users' credentials, for Kafka's administration clients."""

from collections import Counter
from typing import Final, NamedTuple

from antiphon.errors import InvalidRequestError
from antiphon.gateway import changes
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.handlers.refusals import RefusedError, told
from antiphon.kafka.handlers.rights import check
from antiphon.kafka.messages import security as m
from antiphon.kafka.messages.shared import Outcome
from antiphon.model.access import ANY, Acl, Credential, Operation, Pattern, Permission, Resource
from antiphon.model.requests import AlterAcls, AlterUser
from antiphon.security.passwords import MECHANISMS, from_salted

ANYTHING: Final = 1  # in a filter, of each kind of code
MATCH: Final = 2  # of a pattern: every pattern that matches the name
RESOURCES: Final = {2: Resource.TOPIC, 3: Resource.GROUP, 4: Resource.CLUSTER, 5: Resource.TRANSACTIONAL_ID}
PATTERNS: Final = {3: Pattern.LITERAL, 4: Pattern.PREFIXED}
OPERATIONS: Final = {
    2: Operation.ALL,
    3: Operation.READ,
    4: Operation.WRITE,
    5: Operation.CREATE,
    6: Operation.DELETE,
    7: Operation.ALTER,
    8: Operation.DESCRIBE,
    9: Operation.CLUSTER_ACTION,
    10: Operation.DESCRIBE_CONFIGS,
    11: Operation.ALTER_CONFIGS,
    12: Operation.IDEMPOTENT_WRITE,
}
PERMISSIONS: Final = {2: Permission.DENY, 3: Permission.ALLOW}
SCRAM: Final = dict(enumerate(MECHANISMS, 1))

_RESOURCE_CODES: Final = {value: number for number, value in RESOURCES.items()}
_PATTERN_CODES: Final = {value: number for number, value in PATTERNS.items()}
_OPERATION_CODES: Final = {value: number for number, value in OPERATIONS.items()}
_PERMISSION_CODES: Final = {value: number for number, value in PERMISSIONS.items()}
_SCRAM_CODES: Final = {value: number for number, value in SCRAM.items()}


class _Wanted(NamedTuple):
    """What is to become of one user: mechanisms whose credentials go, credentials that come."""

    gone: list[int]
    made: list[m.CredentialUpsertion]


class AccessHandler:
    """By way of the coordinator. Entries about tables have no place in Kafka's protocol, and are left alone by it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def _known(self) -> list[Acl]:
        return sorted(acl for acl in self._gateway.access.acls.values() if acl.resource is not Resource.TABLE)

    async def describe_acls(
        self, request: m.DescribeAclsRequest, context: RequestContext
    ) -> m.DescribeAclsResponse:
        """What matches a filter."""
        check(context.rights, Operation.DESCRIBE, Resource.CLUSTER)
        by_resource: dict[tuple[Resource, str, Pattern], m.DescribeAclsResource] = {}
        for acl in self._known():
            if not _matches(request, acl):
                continue
            place = by_resource.setdefault(
                (acl.resource, acl.name, acl.pattern),
                m.DescribeAclsResource(
                    resource_type=_RESOURCE_CODES[acl.resource],
                    resource_name=acl.name,
                    pattern_type=_PATTERN_CODES[acl.pattern],
                    acls=[],
                ),
            )
            place.acls.append(
                m.AclDescription(
                    principal=acl.principal,
                    host=acl.host,
                    operation=_OPERATION_CODES[acl.operation],
                    permission_type=_PERMISSION_CODES[acl.permission],
                )
            )
        return m.DescribeAclsResponse(resources=list(by_resource.values()))

    async def create_acls(
        self, request: m.CreateAclsRequest, context: RequestContext
    ) -> m.CreateAclsResponse:
        """Add entries, each by itself."""
        check(context.rights, Operation.ALTER, Resource.CLUSTER)
        return m.CreateAclsResponse(
            results=[
                await told(Outcome(), self._create(creation, context))
                async for creation in context.turn_budget.each(request.creations)
            ]
        )

    async def _change(self, request: AlterAcls | AlterUser, context: RequestContext) -> None:
        await changes.administer(self._gateway, request, context.rights, context.client_host, "kafka")

    async def _create(self, creation: m.AclCreation, context: RequestContext) -> None:
        await self._change(AlterAcls((_acl_of(creation),)), context)

    async def delete_acls(
        self, request: m.DeleteAclsRequest, context: RequestContext
    ) -> m.DeleteAclsResponse:
        """Remove what matches each filter."""
        check(context.rights, Operation.ALTER, Resource.CLUSTER)
        results = [
            await self._delete(one, context) async for one in context.turn_budget.each(request.filters)
        ]
        return m.DeleteAclsResponse(filter_results=results)

    async def _delete(self, wanted: m.DeleteAclsFilter, context: RequestContext) -> m.DeleteAclsFilterResult:
        found = [acl for acl in self._known() if _matches(wanted, acl)]
        result = m.DeleteAclsFilterResult()
        if found:
            await told(result, self._change(AlterAcls(remove=tuple(found)), context))
        if not result.error_code:
            result.matching_acls = [
                m.DeletedAcl(
                    resource_type=_RESOURCE_CODES[acl.resource],
                    resource_name=acl.name,
                    pattern_type=_PATTERN_CODES[acl.pattern],
                    principal=acl.principal,
                    host=acl.host,
                    operation=_OPERATION_CODES[acl.operation],
                    permission_type=_PERMISSION_CODES[acl.permission],
                )
                for acl in found
            ]
        return result

    # -- users ----------------------------------------------------------------------------------------------------

    async def describe_users(
        self, request: m.DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> m.DescribeUserScramCredentialsResponse:
        """Users and their mechanisms."""
        check(context.rights, Operation.DESCRIBE, Resource.CLUSTER)
        users = self._gateway.access.users
        names = [user.name for user in request.users or []] or sorted(users)
        results, times = [], Counter(names)
        async for name in context.turn_budget.each(names):
            if times[name] > 1:
                results.append(m.DescribedUser(user=name, error_code=code.DUPLICATE_RESOURCE))
            elif name not in users:
                results.append(m.DescribedUser(user=name, error_code=code.RESOURCE_NOT_FOUND))
            else:
                infos = [
                    m.CredentialInfo(mechanism=_SCRAM_CODES[one.mechanism], iterations=one.iterations)
                    for one in users[name].credentials
                ]
                results.append(m.DescribedUser(user=name, credential_infos=infos))
        return m.DescribeUserScramCredentialsResponse(results=results)

    async def alter_users(
        self, request: m.AlterUserScramCredentialsRequest, context: RequestContext
    ) -> m.AlterUserScramCredentialsResponse:
        """Set and remove credentials, user by user."""
        check(context.rights, Operation.ALTER, Resource.CLUSTER)
        wanted: dict[str, _Wanted] = {}
        for gone in request.deletions:
            wanted.setdefault(gone.name, _Wanted([], [])).gone.append(gone.mechanism)
        for made in request.upsertions:
            wanted.setdefault(made.name, _Wanted([], [])).made.append(made)
        return m.AlterUserScramCredentialsResponse(
            results=[
                await told(m.AlteredUser(user=name), self._alter_user(name, one, context))
                async for name, one in context.turn_budget.each(wanted.items())
            ]
        )

    async def _alter_user(self, name: str, asked: _Wanted, context: RequestContext) -> None:
        gone, wanted = asked
        mechanisms = [*gone, *(one.mechanism for one in wanted)]
        if len(set(mechanisms)) != len(mechanisms):
            raise RefusedError(code.DUPLICATE_RESOURCE)
        if not set(mechanisms) <= set(SCRAM):
            raise RefusedError(code.UNSUPPORTED_SASL_MECHANISM)
        user = self._gateway.access.users.get(name)
        if any(user is None or user.credential(SCRAM[each]) is None for each in gone):
            raise RefusedError(code.RESOURCE_NOT_FOUND)
        made: list[Credential] = [
            from_salted(SCRAM[one.mechanism], one.salted_password, one.salt, one.iterations) for one in wanted
        ]
        try:
            await self._change(AlterUser(name, tuple(made), tuple(SCRAM[each] for each in gone)), context)
        except InvalidRequestError as error:
            raise RefusedError(code.UNACCEPTABLE_CREDENTIAL, error.message) from error


def _acl_of(creation: m.AclCreation) -> Acl:
    try:
        return Acl(
            principal=creation.principal,
            resource=RESOURCES[creation.resource_type],
            name=creation.resource_name,
            operation=OPERATIONS[creation.operation],
            pattern=PATTERNS[creation.resource_pattern_type],
            permission=PERMISSIONS[creation.permission_type],
            host=creation.host,
        )
    except KeyError as error:
        raise InvalidRequestError(f"code {error} means nothing in an entry of access control") from None


def _matches(wanted: m.DescribeAclsRequest | m.DeleteAclsFilter, acl: Acl) -> bool:
    """Kafka's AclBindingFilter."""
    return (
        _is(wanted.resource_type_filter, _RESOURCE_CODES[acl.resource])
        and _is(wanted.operation, _OPERATION_CODES[acl.operation])
        and _is(wanted.permission_type, _PERMISSION_CODES[acl.permission])
        and wanted.principal_filter in {None, acl.principal}
        and wanted.host_filter in {None, acl.host}
        and _matches_name(wanted.pattern_type_filter, wanted.resource_name_filter, acl)
    )


def _is(wanted: int, found: int) -> bool:
    return wanted in {ANYTHING, found}


def _matches_name(pattern: int, name: str | None, acl: Acl) -> bool:
    if pattern == MATCH and name is not None:
        if acl.pattern is Pattern.PREFIXED:
            return name.startswith(acl.name)
        return acl.name in {name, ANY}
    return pattern in {ANYTHING, MATCH, _PATTERN_CODES[acl.pattern]} and name in {None, acl.name}
