"""A web application that writes to a topic and reads it: orders come by HTTP, and what customers spent is read back.

antiphon up --nodes 3          # in another terminal
ORDERS_SERVERS=127.0.0.1:9092 uvicorn orders_app:app --app-dir examples

`test_orders_app.py` beside it has its tests, against real nodes and with their faults.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel


class Order(BaseModel):
    """What a customer orders."""

    customer: str
    cents: int


async def count(consumer: AIOKafkaConsumer, spent: Counter[str]) -> None:
    """Follow the topic: each record is an order that was accepted."""
    async for record in consumer:
        order = json.loads(record.value or b"")
        spent[order["customer"]] += order["cents"]


def make_app(servers: str, topic: str = "orders") -> FastAPI:
    """The application, on this cluster and topic."""
    spent: Counter[str] = Counter()
    producer = consumer = None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        nonlocal producer, consumer
        producer = AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True, request_timeout_ms=5_000
        )
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
        async with producer, consumer:
            counting = asyncio.create_task(count(consumer, spent))
            yield
            counting.cancel()
            with suppress(asyncio.CancelledError):
                await counting

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=202)
    async def accept(order: Order) -> dict[str, int]:
        """Accepted is what is in the log; an order that may not be there is to be sent again."""
        assert producer is not None
        try:
            done = await producer.send_and_wait(
                topic, order.model_dump_json().encode(), order.customer.encode()
            )
        except KafkaError as error:
            raise HTTPException(503, f"not accepted: {error}") from error
        return {"offset": done.offset}

    @app.get("/customers/{name}")
    async def customer(name: str) -> dict[str, int]:
        """What a customer has spent, as far as the topic was read."""
        return {"cents": spent[name]}

    return app


app = make_app(os.environ.get("ORDERS_SERVERS", "127.0.0.1:9092"))
