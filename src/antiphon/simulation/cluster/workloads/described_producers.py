"""When all producers are through, the leaders of the partitions say what was the last batch of each (DescribeProducers)."""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.kafka.messages import transactions as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.records.batch import read_header
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.runtime.process import Process

DESCRIBE_PRODUCERS: Final = 61
LOOK_S: Final = 0.2
WITHIN_S: Final = 20.0  # a leader that was deposed may answer for a while

Known = dict[int, tuple[int, int]]
"""By producer id: its epoch and the last sequence."""


async def describe_producers(workload: KafkaWorkload, process: "Process") -> None:
    """Wait for the other clients, and ask. Raises ViolationError where the answer stays another than the log."""
    others = [client for client in workload.clients if client.process is not process]
    while not workload.stopped or any(not client.task.done() for client in others):
        await asyncio.sleep(LOOK_S)
        others = [client for client in workload.clients if client.process is not process]
    client = workload.client(process)
    for partition, shard_id in workload.shard_ids.items():
        deadline_s = workload.now + WITHIN_S
        while (told := await _described(workload, client, partition)) != (
            wanted := _wanted(workload, shard_id)
        ):
            require(
                workload.now < deadline_s,
                "producers-described",
                f"the leader says {told} of its producers; the log says {wanted}",
                shard_id,
            )
            client.forget(workload.topic, partition)
            await client.back_off()
    client.close()


def _wanted(workload: KafkaWorkload, shard_id: int) -> Known:
    found: Known = {}
    for batch in workload.cluster.evidence.truth(shard_id).batches:
        header = read_header(batch.data)
        if header.producer_id >= 0:
            found[header.producer_id] = (
                header.producer_epoch,
                header.base_sequence + header.record_count - 1,
            )
    return found


async def _described(workload: KafkaWorkload, client: KafkaClient, partition: int) -> Known | None:
    """None: nobody says."""
    address, _ = await client.leader(workload.topic, partition)
    topic = PartitionsOfTopic(name=workload.topic, partitions=[partition])
    try:
        answer = await client.ask(address, DESCRIBE_PRODUCERS, 0, m.DescribeProducersRequest(topics=[topic]))
    except NoAnswerError:
        return None
    one = answer.topics[0].partitions[0]
    if one.error_code:
        return None
    return {each.producer_id: (each.producer_epoch, each.last_sequence) for each in one.active_producers}
