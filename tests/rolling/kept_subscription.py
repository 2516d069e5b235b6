"""A subscription to metrics of Kafka's clients, made as soon as all nodes take one, and seen at each node from then on."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from antiphon.kafka.messages import admin
from tests.kafka.raw import RawClient, alter_configs

NAME: Final = "kept"
VALUES: Final = {
    "metrics": "org.apache.kafka.producer.",
    "interval.ms": "60000",
    "match": "client_id=kept-.*",
}
CLIENT_METRICS: Final = 16
SET: Final = 0
DESCRIBE_CONFIGS: Final = 32
SEEN_S: Final = 20.0
ASK_S: Final = 20.0
T = TypeVar("T")


class KeptSubscription:
    """`kafka`: addresses of the nodes. All is asked by bare sockets, as nodes of each version are asked in the same way.

    Attributes:
        is_made: it was taken.
    """

    def __init__(self, kafka: str) -> None:
        self._addresses = kafka.split(",")
        self.is_made = False

    def make(self) -> str:
        """Make it, at the first node; returns why it was refused, and nothing where it was not."""

        async def alter(client: RawClient) -> str:
            changes = [(name, SET, value) for name, value in VALUES.items()]
            answer = await alter_configs(client, CLIENT_METRICS, NAME, changes)
            return f"error {answer.error_code}: {answer.error_message}" if answer.error_code else ""

        refused = self._ask(self._addresses[0], alter)
        self.is_made = not refused
        return refused

    def check(self) -> None:
        """Each node knows it, with all that it says; AssertionError where one does not come to that."""
        for address in self._addresses:
            ends_s = time.monotonic() + SEEN_S
            while (found := self._ask(address, _described)) != VALUES:
                assert time.monotonic() < ends_s, f"{address} tells of the subscription as {found}"
                time.sleep(0.2)

    def _ask(self, address: str, what: Callable[[RawClient], Awaitable[T]]) -> T:
        async def run() -> T:
            host, port = address.rsplit(":", 1)
            async with asyncio.timeout(ASK_S):
                client = RawClient(*await asyncio.open_connection(host, int(port)))
                try:
                    return await what(client)
                finally:
                    client.writer.close()

        return asyncio.run(run())


async def _described(client: RawClient) -> dict[str, str | None]:
    resource = admin.DescribeConfigsResource(
        resource_type=CLIENT_METRICS, resource_name=NAME, configuration_keys=None
    )
    answer = await client.ask(admin.DescribeConfigsRequest(resources=[resource]), DESCRIBE_CONFIGS, 4)
    return {one.name: one.value for one in answer.results[0].configs}
