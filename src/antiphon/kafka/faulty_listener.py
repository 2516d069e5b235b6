"""A Kafka listener that does wrong when a test says so (`listener_faults`), in place of KafkaListener.

Only a node that was started to be hurt has one (`server/listeners.py`); others do not even import it.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from antiphon.errors import UnknownTopicError
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import API_VERSIONS, FETCH, PRODUCE, SHARE_FETCH, RequestContext
from antiphon.kafka.bodies import decoded, encoded
from antiphon.kafka.connection import Answer, Connection
from antiphon.kafka.faulty_answers import failed, failed_fetch, failed_produce, failed_share_fetch
from antiphon.kafka.fetch_codec import FetchRequest, decode_fetch
from antiphon.kafka.framing import RequestHeader, read_header
from antiphon.kafka.listener import BEFORE_LOGIN, KafkaListener
from antiphon.kafka.listener_faults import ListenerFaults, Rule
from antiphon.kafka.messages.cluster import MetadataRequest, MetadataResponse
from antiphon.kafka.primitives import Reader
from antiphon.kafka.produce_codec import ProduceRequest, decode_produce
from antiphon.kafka.schema import Message, decode
from antiphon.kafka.share_fetch_codec import decode_share_fetch
from antiphon.records.batch import Buffer

NO_ANSWER: Final = 0  # acks of a Produce request
_NOTHING: Final = ListenerFaults({})


class FaultyAnswer(Answer):
    """An answer that comes later, or breaks off."""

    __slots__ = ("breaks", "delay_s")

    def __init__(self, connection: Connection, request_bytes: int) -> None:
        super().__init__(connection, request_bytes)
        self.delay_s = 0.0
        self.breaks = False

    def send(self, *buffers: Buffer) -> None:
        """See Answer."""
        if self.delay_s:
            delay_s, self.delay_s = self.delay_s, 0.0
            asyncio.get_running_loop().call_later(delay_s, self.send, *buffers)
            return
        if self.breaks and buffers:
            whole = b"".join(buffers)
            buffers = (whole[: len(whole) // 2],)
        super().send(*buffers)


class FaultyConnection(Connection):
    """A connection that ends in the middle of an answer that breaks off; those before it are sent."""

    def _handle(self, frame: memoryview) -> None:
        answer = FaultyAnswer(self, len(frame))
        self._answers.append(answer)
        self.requests += 1
        self._dispatcher.dispatch(frame, answer)

    def answered(self) -> None:
        """See Connection."""
        breaking = [isinstance(one, FaultyAnswer) and one.breaks for one in self._answers]
        if True not in breaking:
            super().answered()
            return
        while len(self._answers) > breaking.index(True) + 1:
            self._answers.pop()  # nothing comes after it
        last = self._answers[-1]
        super().answered()
        if last.ready and not self._answers:
            self.close()


class FaultyListener(KafkaListener):
    """See the module's text. `take` says what is wrong from now on."""

    _faults = _NOTHING

    def take(self, told: Mapping[str, Any]) -> None:
        """Do as told from the next request on. Raises InvalidRequestError, with all as before, for what makes no sense."""
        self._faults = ListenerFaults(told)
        self._apis = self._faults.apis
        # What is hit by partition or topic has to name all of them, so nobody fetches what changed only.
        self._handlers.fetch.sessions.served = not (self._faults.delays_s or "Fetch" in self._faults.failures)
        self._handlers.metadata.set_apis(self._apis.values())

    def _made(self) -> Connection:
        return FaultyConnection(self, self._pool.open(), self._inbox)

    def dispatch(self, frame: memoryview, answer: Answer) -> None:
        """See KafkaListener."""
        session = answer.connection.session
        bare = session.takes_bare_messages and session.has_begun
        if self._faults.hit_requests and not bare and isinstance(answer, FaultyAnswer):
            header, reader = read_header(frame, self._apis)
            if header.supported and (session.is_open or header.api.key in BEFORE_LOGIN):
                if self._fails(header, reader, answer):
                    self.requests += 1
                    return
                answer.delay_s = self._delay_s(header, Reader(frame, reader.position))
                answer.breaks = any(
                    rule.tally.take() for rule in self._faults.hang_ups.get(header.api.name, ())
                )
        super().dispatch(frame, answer)

    # -- delays -----------------------------------------------------------------------------------------------------

    def _delay_s(self, header: RequestHeader, reader: Reader) -> float:
        delays = self._faults.delays_s
        if not delays or header.api.key not in (PRODUCE, FETCH):
            return 0.0
        if header.api.key == PRODUCE:
            names = [name for name, _ in decode_produce(reader, header.version).topics]
        else:
            names = self._names(decode_fetch(reader, header.version))
        return max((delays.get(name, 0.0) for name in names), default=0.0)

    def _names(self, request: FetchRequest) -> list[str]:
        names = []
        for topic in request.topics:
            if topic.name is not None:
                names.append(topic.name)
                continue
            try:
                names.append(self._gateway.topic_by_id(topic.topic_id or bytes(16)).name)
            except UnknownTopicError:
                continue
        return names

    # -- errors -----------------------------------------------------------------------------------------------------

    def _fails(self, header: RequestHeader, reader: Reader, answer: Answer) -> bool:
        """Answer with an error, if there is one left and the request has a place for it."""
        for rule in self._faults.failures.get(header.api.name, ()):
            start = Reader(reader.buffer, reader.position)
            if header.api.key == PRODUCE:
                done = self._fail_produce(rule, header, decode_produce(start, header.version), answer)
            elif header.api.key == FETCH:
                fetched = failed_fetch(header, decode_fetch(start, header.version), rule.code)
                done = fetched is not None and rule.tally.take()
                if done and fetched is not None:
                    answer.send(*fetched)
            elif header.api.key == SHARE_FETCH:
                wanted = decode_share_fetch(start, header.version)
                fetched = failed_share_fetch(header, wanted, rule.code)
                done = fetched is not None and rule.tally.take()
                if done and fetched is not None:
                    answer.send(*fetched)
            else:
                done = self._fail_plain(rule, header, decoded(header, start), answer)
            if done:
                return True
        return False

    def _fail_produce(
        self, rule: Rule, header: RequestHeader, request: ProduceRequest, answer: Answer
    ) -> bool:
        frame = failed_produce(header, request, rule.code)
        if frame is None or not rule.tally.take():
            return False
        for name, batches in request.topics:
            for (
                batch
            ) in batches:  # what a producer has sent behind these is refused, as if its log had not got them
                answer.connection.refused_sequences.note(name, batch, rule.code)
        if request.acks == NO_ANSWER:
            answer.send()
            answer.connection.close()  # how a broker tells it
        else:
            answer.send(frame)
        return True

    def _fail_plain(self, rule: Rule, header: RequestHeader, request: Message, answer: Answer) -> bool:
        if isinstance(request, MetadataRequest):
            if not self._asks_for_topics(request, header.version) or not rule.tally.take():
                return False
            work = self._guard(self._fail_metadata(header, request, rule.code, answer), header, answer)
            answer.connection.start_task(work, "kafka Metadata that fails")
            return True
        response = failed(header.api, request, header.version, rule.code)
        if response is None or not rule.tally.take():
            return False
        if header.api.key == API_VERSIONS and rule.code == code.UNSUPPORTED_VERSION:
            header = header._replace(version=0)  # the one version that every client reads
        answer.send(encoded(header, response))
        return True

    def _asks_for_topics(self, request: MetadataRequest, version: int) -> bool:
        asks_for_all = request.topics is None or (version == 0 and not request.topics)
        return bool(self._gateway.metadata.topics if asks_for_all else request.topics)

    async def _fail_metadata(
        self, header: RequestHeader, request: MetadataRequest, error: int, answer: Answer
    ) -> None:
        """The brokers are true, each topic has the error; none is made."""
        connection, version = answer.connection, header.version
        flexible = header.api.is_flexible(version)
        context = RequestContext(
            version, flexible, header.client_id, connection.client_host, connection.session
        )
        asked = msgspec.structs.replace(request, allow_auto_topic_creation=False)
        body = await self._handlers.metadata.metadata(asked, context)
        response = decode(MetadataResponse, memoryview(body), version, flexible=flexible)
        for topic in response.topics:
            topic.error_code, topic.partitions = error, []
        answer.send(encoded(header, response))
