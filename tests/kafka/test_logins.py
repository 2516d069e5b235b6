"""Kafka's own clients log in over real sockets: by each mechanism, with what is wrong, and as who may not."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from antiphon.kafka import error_codes as code
from antiphon.model.access import Acl, Operation, Resource
from antiphon.model.requests import AlterAcls, AlterUser
from antiphon.security.passwords import credentials
from antiphon.security.settings import Security
from tests.kafka.served import Served, serve

SECURITY = Security(authentication=True, super_users=["User:root"])
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("node")
    with serve(directory, security=SECURITY) as node:
        for name in ("root", "eve"):
            made = AlterUser(name, credentials(f"of {name}"))
            node.call(partial(node.node.gateway.administer, made))
        node.create("t")
        read = Acl("User:eve", Resource.TOPIC, "t", Operation.READ)
        node.call(partial(node.node.gateway.administer, AlterAcls((read,))))
        yield node


def confluent(served: Served, mechanism: str, user: str, password: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": served.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        **more,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka(served: Served, mechanism: str) -> None:
    from confluent_kafka import Consumer, KafkaException, Producer
    from confluent_kafka.admin import AdminClient

    producer = Producer(confluent(served, mechanism, "root", "of root"))
    problems: list[Any] = []
    producer.produce("t", mechanism.encode(), on_delivery=lambda error, _: problems.append(error))
    assert producer.flush(10) == 0
    assert problems == [None]
    consumer = Consumer(
        confluent(served, mechanism, "eve", "of eve", **{"group.id": "g", "auto.offset.reset": "earliest"})
    )
    consumer.subscribe(["t"])
    message = consumer.poll(5)
    assert message is not None
    assert message.error().code() == code.GROUP_AUTHORIZATION_FAILED
    consumer.close()
    wrong = AdminClient(confluent(served, mechanism, "eve", "wrong"))
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=3)
    topics = AdminClient(confluent(served, mechanism, "eve", "of eve")).list_topics(timeout=5).topics
    assert set(topics) == {"t"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(served: Served, mechanism: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import TopicAuthorizationFailedError

    async def send(user: str) -> Any:
        producer = AIOKafkaProducer(
            bootstrap_servers=served.address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=f"of {user}",
        )
        await producer.start()
        try:
            return await producer.send_and_wait("t", b"x")
        finally:
            await producer.stop()

    assert asyncio.run(send("root")).offset >= 0
    with pytest.raises(TopicAuthorizationFailedError):
        asyncio.run(send("eve"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(served: Served, mechanism: str) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=served.address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="root",
        sasl_plain_password="of root",
    )
    assert producer.send("t", b"x").get(10).offset >= 0
    producer.close()


def test_lists_and_users_by_kafkas_administration(served: Served) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient(confluent(served, "SCRAM-SHA-256", "root", "of root"))
    binding = AclBinding(
        ResourceType.TOPIC,
        "orders-",
        ResourcePatternType.PREFIXED,
        "User:bob",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([binding]).values():
        future.result(10)
    wanted = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        "User:bob",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(wanted).result(10) == [binding]
    for future in admin.delete_acls([wanted]).values():
        assert future.result(10) == [binding]
    assert admin.describe_acls(wanted).result(10) == []
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    upsertion = UserScramCredentialUpsertion("bob", info, b"of bob", b"some salt of bob")
    admin.alter_user_scram_credentials([upsertion])["bob"].result(10)
    described = admin.describe_user_scram_credentials(["bob"])["bob"].result(10)
    assert [one.iterations for one in described.scram_credential_infos] == [8192]
    bob = AdminClient(confluent(served, "SCRAM-SHA-512", "bob", "of bob"))
    assert bob.list_topics(timeout=5).topics == {}
