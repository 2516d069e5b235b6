"""Beside each producer: batches with right checksums that nobody could read. None is taken, and the producer goes on."""

from typing import TYPE_CHECKING, Final

from antiphon import system
from antiphon.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES
from antiphon.records.builder import build_batch, seal
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.workloads.kafka_workload import TOPIC, KafkaWorkload
from antiphon.simulation.violation import ViolationError

if TYPE_CHECKING:
    from random import Random

    from antiphon.simulation.runtime.process import Process

LIE: Final = 1
PAUSE_OPERATIONS: Final = 20  # of the others, for each of these


async def send_damaged(workload: KafkaWorkload, process: "Process", number: int) -> None:
    """Send such batches until the workload is stopped. Raises ViolationError where one is taken."""
    draw, client = workload.cluster.stream(f"damage {number}"), workload.client(process)
    while not workload.stopped:
        await workload.think(process, PAUSE_OPERATIONS)
        partition = draw.choice(list(workload.shard_ids))
        batch = damaged_batch(draw, workload.looks_at_records)
        try:
            address, _ = await client.leader(TOPIC, partition)
            done = await client.produce(address, TOPIC, partition, batch)
        except NoAnswerError:
            client.forget(TOPIC, partition)
            continue
        workload.cluster.tell("damaged", partition, done.error_code)
        if not done.error_code:
            raise ViolationError(
                "damaged-refused",
                f"a batch that nobody can read was taken at offset {done.base_offset}",
                workload.shard_ids[partition],
            )
        client.forget(TOPIC, partition)
    client.close()


def damaged_batch(draw: "Random", looks_at_records: bool) -> bytes:
    """A batch whose records are garbage, whose count is a lie, or one record of which is cut short.

    Where nodes do not look at records, its count is a lie, which is seen from outside.
    """
    batch = build_batch([(None, b"damaged %d" % n, (), system.wall_ms()) for n in range(draw.randint(1, 3))])
    kind = draw.randrange(3) if looks_at_records else LIE
    if kind == 0:
        batch = batch[:HEADER_BYTES] + b"\xa7" * draw.randint(30, 90)
    elif kind == LIE:
        batch[23:27] = (2**31 - 2).to_bytes(4, "big")
        batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    else:
        del batch[-draw.randint(1, 5) :]
    batch[8:12] = (len(batch) - LENGTH_PREFIX_BYTES).to_bytes(4, "big")
    seal(batch)
    return bytes(batch)
