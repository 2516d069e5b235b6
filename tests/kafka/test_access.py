"""Who may do what at the Kafka listener: every API that touches a resource refuses a principal without rights."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from antiphon.kafka import error_codes as code
from antiphon.kafka.apis import APIS
from antiphon.kafka.handlers.access import OPERATIONS
from antiphon.kafka.handlers.operations import OF_CLUSTERS, OF_GROUPS, OF_TOPICS
from antiphon.kafka.messages import (
    admin,
    cluster,
    described,
    groups,
    quotas,
    reassignments,
    security,
    share_groups,
    transactions,
)
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.kafka.schema import Message
from antiphon.model.access import CLUSTER_NAME, Acl, Operation, Pattern, Permission, Resource
from antiphon.model.metadata import Kind
from antiphon.model.requests import AlterAcls, AlterUser
from antiphon.security.account import Account
from antiphon.security.client_login import ClientLogin
from antiphon.security.passwords import credentials
from antiphon.security.settings import Security
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.oracles import leaves
from tests.kafka.raw import Connect, RawClient, batch, fetch, listening, produce
from tests.kafka.test_apis import TO_COORDINATOR, TO_LEADER
from tests.kafka.transactional import Transactional, begun
from tests.node.in_process import in_virtual_time

SECURITY = Security(authentication=True, super_users=["User:root"])
Op, R = Operation, Resource

OPEN_TO_ALL = {
    "ApiVersions", "SaslHandshake", "SaslAuthenticate", "DescribeCluster", "GetTelemetrySubscriptions",
    "PushTelemetry",
}  # fmt: skip
"""APIs that touch no resource: anybody (who has logged in, for the last three) is told addresses of nodes, and that no
metrics are wanted.
"""

ACL_FILTER: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
OTHERS: dict[str, Message] = {
    "ShareAcknowledge": share_groups.ShareAcknowledgeRequest(
        group_id="g", member_id="m", share_session_epoch=1, topics=[]
    ),
    "Metadata": cluster.MetadataRequest(topics=[cluster.MetadataRequestTopic(name="t")]),
    "FindCoordinator": cluster.FindCoordinatorRequest(coordinator_keys=["g"]),
    "InitProducerId": cluster.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
    "CreateTopics": admin.CreateTopicsRequest(
        topics=[
            admin.CreatableTopic(name="n", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        ],
        timeout_ms=1000,
    ),
    "DeleteTopics": admin.DeleteTopicsRequest(
        topics=[admin.DeletableTopic(name="t", topic_id=bytes(16))], timeout_ms=1000
    ),
    "CreatePartitions": admin.CreatePartitionsRequest(
        topics=[admin.GrowingTopic(name="t", count=3, assignments=None)], timeout_ms=1000, validate_only=False
    ),
    "DescribeConfigs": admin.DescribeConfigsRequest(
        resources=[admin.DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)]
    ),
    "IncrementalAlterConfigs": admin.IncrementalAlterConfigsRequest(
        resources=[
            admin.AlterableResource(
                resource_type=2,
                resource_name="t",
                configs=[admin.AlterableSetting(name="retention.ms", config_operation=0, value="1000")],
            )
        ],
        validate_only=False,
    ),
    "DescribeLogDirs": admin.DescribeLogDirsRequest(topics=None),
    "ElectLeaders": admin.ElectLeadersRequest(
        topic_partitions=[PartitionsOfTopic(name="t", partitions=[0])], timeout_ms=1000
    ),
    "AlterPartitionReassignments": reassignments.AlterPartitionReassignmentsRequest(
        timeout_ms=1000,
        topics=[
            reassignments.ReassignedTopic(
                name="t", partitions=[reassignments.ReassignedPartition(partition_index=0, replicas=[0])]
            )
        ],
    ),
    "ListPartitionReassignments": reassignments.ListPartitionReassignmentsRequest(
        timeout_ms=1000, topics=None
    ),
    "AlterConfigs": admin.AlterConfigsRequest(
        resources=[admin.ReplacedResource(resource_type=2, resource_name="t", configs=[])],
        validate_only=False,
    ),
    "DescribeQuorum": described.DescribeQuorumRequest(topics=[]),
    "UpdateFeatures": described.UpdateFeaturesRequest(timeout_ms=1000, feature_updates=[]),
    "ListConfigResources": described.ListConfigResourcesRequest(),
    "DescribeTopicPartitions": described.DescribeTopicPartitionsRequest(
        topics=[described.NamedTopic(name="t")]
    ),
    "DescribeAcls": security.DescribeAclsRequest(**ACL_FILTER),
    "CreateAcls": security.CreateAclsRequest(
        creations=[
            security.AclCreation(
                resource_type=2,
                resource_name="t",
                resource_pattern_type=3,
                principal="User:eve",
                host="*",
                operation=2,
                permission_type=3,
            )
        ]
    ),
    "DeleteAcls": security.DeleteAclsRequest(filters=[security.DeleteAclsFilter(**ACL_FILTER)]),
    "DescribeUserScramCredentials": security.DescribeUserScramCredentialsRequest(users=None),
    "DescribeClientQuotas": quotas.DescribeClientQuotasRequest(components=[], strict=False),
    "AlterClientQuotas": quotas.AlterClientQuotasRequest(
        entries=[
            quotas.AlteredEntry(
                entity=[quotas.EntityPart(entity_type="user", entity_name="eve")],
                ops=[quotas.QuotaOp(key="producer_byte_rate", value=1e9, remove=False)],
            )
        ],
        validate_only=False,
    ),
    "AlterUserScramCredentials": security.AlterUserScramCredentialsRequest(
        deletions=[security.CredentialDeletion(name="root", mechanism=1)], upsertions=[]
    ),
}
PLAIN_REQUESTS: dict[str, Message] = {**TO_LEADER, **TO_COORDINATOR, **OTHERS}
DENIALS = {
    code.TOPIC_AUTHORIZATION_FAILED,
    code.GROUP_AUTHORIZATION_FAILED,
    code.CLUSTER_AUTHORIZATION_FAILED,
    code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def test_every_api_is_shown_to_ask() -> None:
    """Who adds an API adds what it refuses; ListGroups and ListTransactions show nothing, instead."""
    shown = {*PLAIN_REQUESTS, "Produce", "Fetch", "ShareFetch", "ListGroups", "ListTransactions"}
    assert shown | OPEN_TO_ALL == {api.name for api in APIS.values()}


@asynccontextmanager
async def secured(nodes: int = 1, **config: Any) -> AsyncIterator[tuple[KafkaNodes, Connect]]:
    """A cluster with users `root`, who may do everything, and `eve`, who may do what the lists say."""
    async with listening(nodes, security=SECURITY, **config) as (served, connect):
        for name in ("root", "eve"):
            await served.first.gateway.administer(AlterUser(name, credentials(f"of {name}")))
        yield served, connect


async def log_in(client: RawClient, name: str, password: str | None = None) -> Any:
    """The last answer of a login."""
    chosen = await client.ask(security.SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 17, 1)
    assert chosen.error_code == code.NONE
    login = ClientLogin(Account(name, password or f"of {name}"), ["SCRAM-SHA-256"], "the listener")
    first = await client.ask(security.SaslAuthenticateRequest(auth_bytes=login.first()), 36, 2)
    assert first.error_code == code.NONE, "whoever it is"
    second = login.next(first.auth_bytes) or b""
    return await client.ask(security.SaslAuthenticateRequest(auth_bytes=second), 36, 2)


async def as_user(connect: Connect, name: str) -> RawClient:
    client = await connect()
    assert (await log_in(client, name)).error_code == code.NONE
    return client


async def ask(client: RawClient, name: str) -> Any:
    api = next(api for api in APIS.values() if api.name == name)
    return await client.ask(PLAIN_REQUESTS[name], api.key, api.max_version)


async def give(served: KafkaNodes, *acls: Acl) -> None:
    await served.first.gateway.administer(AlterAcls(acls))


def eves(resource: Resource, name: str, operation: Operation, **more: Any) -> Acl:
    return Acl("User:eve", resource, name, operation, **more)


@in_virtual_time
async def test_each_api_refuses_who_has_no_rights() -> None:
    async with secured() as (served, connect):
        await served.create("t")
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        before = served.first.gateway.access.version
        eve = await as_user(connect, "eve")
        denied = served.first.metrics.denied
        assert (await produce(eve, "t", batch(b"x")))[0].error_code == code.TOPIC_AUTHORIZATION_FAILED
        assert (await fetch(eve, "t", 0)).error_code == code.TOPIC_AUTHORIZATION_FAILED
        for name in PLAIN_REQUESTS:
            answer = await ask(eve, name)
            assert DENIALS & set(leaves(answer)), f"{name}: {answer}"
        assert (await eve.ask(groups.ListGroupsRequest(), 16, 4)).groups == []
        hidden = transactions.ListTransactionsRequest(state_filters=[], producer_id_filters=[])
        assert (await eve.ask(hidden, 66, 1)).transaction_states == []
        everything = await eve.ask(cluster.MetadataRequest(topics=None), 3, 12)
        assert everything.topics == []
        assert served.first.metrics.denied > denied
        assert served.first.gateway.access.version == before, "nothing was changed"
        assert served.end("t") == 0


@in_virtual_time
async def test_who_may_do_everything_is_refused_nothing() -> None:
    async with secured() as (served, connect):
        await served.create("t")
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        root = await as_user(connect, "root")
        assert (await produce(root, "t", batch(b"x")))[0].error_code == code.NONE
        assert (await fetch(root, "t", 0)).error_code == code.NONE
        for name in PLAIN_REQUESTS:
            assert not DENIALS & set(leaves(await ask(root, name))), name


@in_virtual_time
async def test_without_authentication_nobody_is_refused() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        assert (await produce(client, "t", batch(b"x")))[0].error_code == code.NONE
        refused = await client.ask(security.SaslHandshakeRequest(mechanism="PLAIN"), 17, 1)
        assert (refused.error_code, refused.mechanisms) == (code.UNSUPPORTED_SASL_MECHANISM, [])


@in_virtual_time
async def test_lists_count_at_once_and_deny_wins() -> None:
    async with secured() as (served, connect):
        await served.create("orders")
        eve = await as_user(connect, "eve")

        async def written() -> int:
            return int((await produce(eve, "orders", batch(b"x")))[0].error_code)

        allow = eves(R.TOPIC, "or", Op.WRITE, pattern=Pattern.PREFIXED)
        deny = eves(R.TOPIC, "*", Op.ALL, permission=Permission.DENY)
        assert await written() == code.TOPIC_AUTHORIZATION_FAILED
        await give(served, allow)
        assert await written() == code.NONE
        assert (await fetch(eve, "orders", 0)).error_code == code.TOPIC_AUTHORIZATION_FAILED
        await give(served, deny)
        assert await written() == code.TOPIC_AUTHORIZATION_FAILED
        await served.first.gateway.administer(AlterAcls(remove=(deny,)))
        assert await written() == code.NONE


@in_virtual_time
async def test_topics_are_hidden_and_made_only_by_who_may() -> None:
    async with secured() as (served, connect):
        for name in ("seen", "hidden"):
            await served.create(name)
        eve = await as_user(connect, "eve")
        await give(served, eves(R.TOPIC, "seen", Op.READ), eves(R.TOPIC, "new", Op.READ))
        found = await eve.ask(cluster.MetadataRequest(topics=None), 3, 12)
        assert [topic.name for topic in found.topics] == ["seen"]

        async def asked(name: str) -> int:
            wanted = cluster.MetadataRequest(topics=[cluster.MetadataRequestTopic(name=name)])
            return int((await eve.ask(wanted, 3, 9)).topics[0].error_code)

        assert await asked("hidden") == code.TOPIC_AUTHORIZATION_FAILED
        assert await asked("absent") == code.TOPIC_AUTHORIZATION_FAILED, "the same, whether it is there"
        assert await asked("new") == code.TOPIC_AUTHORIZATION_FAILED, "to make a topic takes CREATE"
        await give(served, eves(R.TOPIC, "new", Op.CREATE))
        assert await asked("new") == code.NONE
        assert "absent" not in {topic.name for topic in served.first.gateway.metadata.topics}


@in_virtual_time
async def test_a_table_is_no_topic_and_what_is_the_clusters_is_nobodys() -> None:
    async with secured() as (served, connect):
        await served.create("k", kind=Kind.TABLE)
        await served.create("__groups", kind=Kind.TABLE, internal=True)
        eve = await as_user(connect, "eve")
        await give(served, eves(R.TOPIC, "*", Op.ALL))
        assert (await fetch(eve, "k", 0)).error_code == code.TOPIC_AUTHORIZATION_FAILED
        await give(served, eves(R.TABLE, "*", Op.ALL))
        assert (await fetch(eve, "k", 0)).error_code == code.NONE
        assert (await fetch(eve, "__groups", 0)).error_code == code.TOPIC_AUTHORIZATION_FAILED


@in_virtual_time
async def test_to_see_a_topics_producers_takes_more_than_to_see_the_topic() -> None:
    async with secured() as (served, connect):
        await served.create("t")
        eve = await as_user(connect, "eve")
        for operation, error in ((Op.DESCRIBE, code.TOPIC_AUTHORIZATION_FAILED), (Op.READ, code.NONE)):
            await give(served, eves(R.TOPIC, "t", operation))
            told = await ask(eve, "DescribeProducers")
            assert told.topics[0].partitions[0].error_code == error


@in_virtual_time
async def test_a_transaction_takes_its_id_its_topics_and_its_group() -> None:
    async with secured() as (served, connect):
        await served.create("t")
        eve = Transactional(await as_user(connect, "eve"))
        denied = code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await eve.find()).error_code == await eve.init() == denied
        await give(served, eves(R.TRANSACTIONAL_ID, "tx", Op.DESCRIBE))
        assert (await eve.find()).error_code == code.NONE
        assert await eve.init() == denied
        await give(served, eves(R.TRANSACTIONAL_ID, "tx", Op.WRITE))
        await begun(eve)
        assert await eve.add(("t", 0)) == [code.TOPIC_AUTHORIZATION_FAILED]
        assert await eve.add_group("g") == code.GROUP_AUTHORIZATION_FAILED
        await give(served, eves(R.TOPIC, "t", Op.WRITE), eves(R.GROUP, "g", Op.READ))
        assert await eve.add(("t", 0)) == [code.NONE]
        assert await eve.add_group("g") == code.NONE
        assert await eve.write("t", b"x") == code.NONE
        assert await eve.commit_offset("g", "t", 1) == code.TOPIC_AUTHORIZATION_FAILED
        await give(served, eves(R.TOPIC, "t", Op.READ))
        assert await eve.commit_offset("g", "t", 1) == code.NONE
        await served.first.gateway.administer(AlterAcls(remove=(eves(R.TRANSACTIONAL_ID, "tx", Op.WRITE),)))
        assert await eve.write("t", b"x") == await eve.end(commit=True) == denied
        assert await eve.commit_offset("g", "t", 1) == denied
        assert (await eve.describe()).error_code == code.NONE


# -- logins -----------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_node_that_knows_no_users_yet_hangs_up_without_a_verdict() -> None:
    async with secured() as (served, connect):
        book = served.first.view.access
        users, book.users, book.is_known = book.users, {}, False
        client = await connect()
        with pytest.raises(asyncio.IncompleteReadError):
            await log_in(client, "eve")
        book.users, book.is_known = users, True
        eve = await as_user(connect, "eve")
        book.is_known = False  # as for who has a certificate or a token, whatever the node knows
        with capture_logs() as lines, pytest.raises(asyncio.IncompleteReadError):
            await ask(eve, "CreateTopics")
        assert "no access control lists yet" in lines[-1]["reason"]


@in_virtual_time
async def test_nothing_is_answered_before_a_login() -> None:
    async with secured() as (_, connect):
        client = await connect()
        versions = await client.ask(cluster.ApiVersionsRequest(), 18, 3)
        assert versions.error_code == code.NONE
        client.send(3, 1, b"\0\0\0\0")
        assert await client.is_closed()


@in_virtual_time
async def test_a_wrong_password_and_an_unknown_user_fail_alike_after_a_while() -> None:
    async with secured() as (served, connect):
        loop, told = asyncio.get_running_loop(), []
        for name, password in (("eve", "wrong"), ("nobody", "of nobody")):
            client, began = await connect(), loop.time()
            answer = await log_in(client, name, password)
            assert 0.9 < loop.time() - began < 2.0
            told.append((answer.error_code, answer.error_message, answer.auth_bytes))
            assert await client.is_closed()
        assert told == [(code.SASL_AUTHENTICATION_FAILED, "authentication failed", b"")] * 2
        assert served.first.metrics.logins_failed == 2


@in_virtual_time
async def test_a_removed_user_is_hung_up_on() -> None:
    async with secured() as (served, connect):
        eve, root = await as_user(connect, "eve"), await as_user(connect, "root")
        await served.first.gateway.administer(AlterUser("eve", remove=True))
        async with asyncio.timeout(3):
            assert await eve.is_closed()
        versions = await root.ask(cluster.ApiVersionsRequest(), 18, 3)
        assert versions.error_code == code.NONE, "others stay"


@in_virtual_time
async def test_who_does_not_log_in_is_hung_up_on() -> None:
    async with secured(first_request_s=2.0) as (_, connect):
        client = await connect()
        async with asyncio.timeout(5):
            while not client.reader.at_eof():
                await client.ask(cluster.ApiVersionsRequest(), 18, 3)
                await asyncio.sleep(0.5)


@in_virtual_time
async def test_another_mechanism_out_of_turn_and_bare_messages() -> None:
    async with secured() as (_, connect):
        client = await connect()
        refused = await client.ask(security.SaslHandshakeRequest(mechanism="GSSAPI"), 17, 1)
        assert refused.error_code == code.UNSUPPORTED_SASL_MECHANISM
        assert set(refused.mechanisms) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
        plain = await client.ask(security.SaslHandshakeRequest(mechanism="PLAIN"), 17, 1)
        assert plain.error_code == code.UNSUPPORTED_SASL_MECHANISM, "it would be read on the way"
        early = await client.ask(security.SaslAuthenticateRequest(auth_bytes=b"x"), 36, 1)
        assert early.error_code == code.ILLEGAL_SASL_STATE
        assert await client.is_closed()
        bare = await connect()
        await bare.ask(security.SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 17, 0)
        login = ClientLogin(Account("root", "of root"), ["SCRAM-SHA-512"], "the listener")
        data: bytes | None = login.first()
        while data is not None:
            bare.writer.write(len(data).to_bytes(4, "big") + data)
            data = login.next(await bare.frame())
        assert (await bare.ask(cluster.MetadataRequest(topics=[]), 3, 1)).topics == []


@in_virtual_time
async def test_an_identity_is_renewed_as_itself_only() -> None:
    async with secured() as (_, connect):
        client = await as_user(connect, "eve")
        assert (await log_in(client, "eve")).error_code == code.NONE
        assert (await log_in(client, "root")).error_code == code.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()


def operations(number: int) -> set[Operation]:
    """What the bits of a number stand for."""
    return {operation for bit, operation in OPERATIONS.items() if number >> bit & 1}


@in_virtual_time
async def test_who_asks_for_it_hears_what_he_may_do() -> None:
    async def told(client: RawClient, asked: bool = True) -> list[int]:
        """Of topic t, the cluster by Metadata and by DescribeCluster, and group g."""
        topics = [cluster.MetadataRequestTopic(name="t")]
        meta = await client.ask(
            cluster.MetadataRequest(
                topics=topics,
                include_cluster_authorized_operations=asked,
                include_topic_authorized_operations=asked,
            ),
            3,
            10,
        )
        described = await client.ask(
            cluster.DescribeClusterRequest(include_cluster_authorized_operations=asked), 60, 0
        )
        group = await client.ask(
            groups.DescribeGroupsRequest(groups=["g"], include_authorized_operations=asked), 15, 5
        )
        return [
            meta.topics[0].topic_authorized_operations,
            meta.cluster_authorized_operations,
            described.cluster_authorized_operations,
            group.groups[0].authorized_operations,
        ]

    async with secured() as (served, connect):
        await served.create("t")
        eve, root = await as_user(connect, "eve"), await as_user(connect, "root")
        assert await told(root, asked=False) == [cluster.OPERATIONS_NOT_ASKED] * 4
        everything = [{*OF_TOPICS}, {*OF_CLUSTERS}, {*OF_CLUSTERS}, {*OF_GROUPS}]
        assert [operations(number) for number in await told(root)] == everything
        unsaid = cluster.OPERATIONS_NOT_ASKED
        assert await told(eve) == [unsaid, 0, 0, unsaid]
        await give(
            served,
            eves(R.TOPIC, "t", Op.WRITE),
            eves(R.TOPIC, "t", Op.ALTER_CONFIGS),
            eves(R.CLUSTER, CLUSTER_NAME, Op.DESCRIBE),
            eves(R.GROUP, "*", Op.ALL),
            eves(R.GROUP, "g", Op.DELETE, permission=Permission.DENY),
        )
        assert [operations(number) for number in await told(eve)] == [
            {Op.WRITE, Op.DESCRIBE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS},
            {Op.DESCRIBE},
            {Op.DESCRIBE},
            {Op.READ, Op.DESCRIBE},
        ]
        denied = served.first.metrics.denied
        await told(eve)
        assert served.first.metrics.denied == denied, "it only asked"
    async with listening() as (served, connect):
        await served.create("t")
        assert [operations(number) for number in await told(await connect())] == everything
