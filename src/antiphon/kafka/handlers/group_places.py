"""Partitions of a group's member, as heartbeats and descriptions of consumer and share groups tell them."""

from antiphon.coordination.consumer_terms import Places
from antiphon.errors import UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka.groups.consumer_rows import packed
from antiphon.kafka.messages import consumer_groups as m


def assignment(places: Places) -> m.HeartbeatAssignment:
    """By the topics' ids."""
    return m.HeartbeatAssignment(
        topic_partitions=[
            m.TopicPartitions(topic_id=topic_id, partitions=list(partitions))
            for topic_id, partitions in packed(places).items()
        ]
    )


def named_assignment(gateway: Gateway, places: Places) -> m.DescribedAssignment:
    """By the topics' ids and names; without those that are deleted."""
    found = []
    for topic_id, partitions in packed(places).items():
        try:
            name = gateway.topic_by_id(topic_id).name
        except UnknownTopicError:
            continue
        found.append(m.NamedPartitions(topic_id=topic_id, topic_name=name, partitions=list(partitions)))
    return m.DescribedAssignment(topic_partitions=found)
