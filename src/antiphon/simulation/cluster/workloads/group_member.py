"""One life of a member of a group, as a client of Kafka's protocol: what it asks goes to the group's coordinator."""

from typing import TYPE_CHECKING, Any, ClassVar

from antiphon.simulation.cluster.kafka_client import Address, KafkaClient, NoAnswerError

if TYPE_CHECKING:
    from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
    from antiphon.simulation.runtime.process import Process


class GroupMember:
    """See the module's text. `number`: of its life, which no other one of the workload has.

    Attributes:
        group: which one it is.
        ask_s: how long it waits for an answer.
    """

    group: ClassVar[str]
    ask_s: ClassVar[float]

    def __init__(
        self, workload: "KafkaWorkload", process: "Process", client: KafkaClient, number: int
    ) -> None:
        self._workload = workload
        self._client = client
        self._draw = client.random
        self.name = f"{process.name}-{number}"
        self._coordinator: Address | None = None
        self._epoch = 0

    async def _ask_coordinator(self, key: int, version: int, request: Any, longer_s: float = 0.0) -> Any:
        if self._coordinator is None:
            self._coordinator = await self._client.coordinator(self.group)
        if self._coordinator is None:
            raise NoAnswerError("nobody knows the coordinator")
        return await self._client.ask(self._coordinator, key, version, request, self.ask_s + longer_s)
