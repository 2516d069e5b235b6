"""Messages of transactions: their coordinator's, and what operators ask of it."""

from typing import Annotated

from antiphon.kafka.messages.shared import ErrorResponse, PartitionsOfTopic, Response, TopicCodes
from antiphon.kafka.schema import I8, I16, I32, I64, Message, V


class ProducersStep(Message, kw_only=True):
    """A step of a transaction, and whose it is."""

    transactional_id: str
    producer_id: I64
    producer_epoch: I16


class TxnToJoin(ProducersStep, kw_only=True):
    """One transaction of many. `verify_only`: nothing is added, the answer says what takes part."""

    verify_only: bool = False
    topics: list[PartitionsOfTopic]


class AddPartitionsToTxnRequest(Message, kw_only=True):
    """A client's transaction up to version 3; many of a broker's clients from 4 on."""

    transactions: Annotated[list[TxnToJoin], V(4)] = []
    transactional_id: Annotated[str, V(0, 3)] = ""
    producer_id: Annotated[I64, V(0, 3)] = -1
    producer_epoch: Annotated[I16, V(0, 3)] = -1
    topics: Annotated[list[PartitionsOfTopic], V(0, 3)] = []


class TxnResult(Message, kw_only=True):
    """Outcomes of one transaction."""

    transactional_id: str
    topic_results: list[TopicCodes]


class AddPartitionsToTxnResponse(Response, kw_only=True):
    """Outcomes in the order of the request."""

    error_code: Annotated[I16, V(4)] = 0
    results_by_transaction: Annotated[list[TxnResult], V(4)] = []
    results_by_topic: Annotated[list[TopicCodes], V(0, 3)] = []


class AddOffsetsToTxnRequest(ProducersStep, kw_only=True):
    """A group takes part in the transaction."""

    group_id: str


class AddOffsetsToTxnResponse(ErrorResponse, kw_only=True):
    """Outcome."""


class EndTxnRequest(ProducersStep, kw_only=True):
    """Commit or abort."""

    committed: bool


class EndTxnResponse(ErrorResponse, kw_only=True):
    """Outcome, and what the producer is from now on."""

    producer_id: Annotated[I64, V(5)] = -1
    producer_epoch: Annotated[I16, V(5)] = -1


class TxnMarker(Message, kw_only=True):
    """The end of a producer's transaction. The coordinator's epoch is Kafka's, and the version that of its protocol."""

    producer_id: I64
    producer_epoch: I16
    committed: bool
    topics: list[PartitionsOfTopic]
    coordinator_epoch: I32
    transaction_version: Annotated[I8, V(2)] = 0


class WriteTxnMarkersRequest(Message, kw_only=True):
    """End transactions in partitions."""

    markers: list[TxnMarker]


class WrittenTxnMarker(Message, kw_only=True):
    """Outcomes for one producer."""

    producer_id: I64
    topics: list[TopicCodes]


class WriteTxnMarkersResponse(Message, kw_only=True):
    """Outcomes in the order of the request."""

    markers: list[WrittenTxnMarker]


class TxnOffsetCommitPartition(Message, kw_only=True):
    """An offset to remember if the transaction commits."""

    partition_index: I32
    committed_offset: I64
    committed_leader_epoch: Annotated[I32, V(2)] = -1
    committed_metadata: str | None


class TxnOffsetCommitTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[TxnOffsetCommitPartition]


class TxnOffsetCommitRequest(Message, kw_only=True):
    """Offsets that become the group's with the transaction."""

    transactional_id: str
    group_id: str
    producer_id: I64
    producer_epoch: I16
    generation_id: Annotated[I32, V(3)] = -1
    member_id: Annotated[str, V(3)] = ""
    group_instance_id: Annotated[str | None, V(3)] = None
    topics: list[TxnOffsetCommitTopic]


class TxnOffsetCommitResponse(Response, kw_only=True):
    """Outcomes in the order of the request."""

    topics: list[TopicCodes]


class DescribeTransactionsRequest(Message, kw_only=True):
    """Ask for the state of transactional ids."""

    transactional_ids: list[str]


class DescribedTransaction(Message, kw_only=True):
    """One transactional id. A start of -1: no transaction is under way."""

    error_code: I16
    transactional_id: str
    transaction_state: str = ""
    transaction_timeout_ms: I32 = 0
    transaction_start_time_ms: I64 = -1
    producer_id: I64 = -1
    producer_epoch: I16 = -1
    topics: list[PartitionsOfTopic] = []


class DescribeTransactionsResponse(Response, kw_only=True):
    """States in the order of the request."""

    transaction_states: list[DescribedTransaction]


class DescribeProducersRequest(Message, kw_only=True):
    """Ask what leaders know of the producers of partitions."""

    topics: list[PartitionsOfTopic]


class DescribedProducer(Message, kw_only=True):
    """One producer. -1: not known; as the start of a transaction: none is under way."""

    producer_id: I64
    producer_epoch: I32
    last_sequence: I32 = -1
    last_timestamp: I64 = -1
    coordinator_epoch: I32
    current_txn_start_offset: I64 = -1


class DescribedProducers(Message, kw_only=True):
    """Those of one partition."""

    partition_index: I32
    error_code: I16
    error_message: str | None = None
    active_producers: list[DescribedProducer] = []


class DescribedProducersTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: str
    partitions: list[DescribedProducers]


class DescribeProducersResponse(Response, kw_only=True):
    """Each partition that was named, once."""

    topics: list[DescribedProducersTopic]


class ListTransactionsRequest(Message, kw_only=True):
    """Which transactional ids are asked for; a filter that is empty (a duration below 0) lets all through."""

    state_filters: list[str]
    producer_id_filters: list[I64]
    duration_filter: Annotated[I64, V(1)] = -1
    transactional_id_pattern: Annotated[str | None, V(2)] = None


class ListedTransaction(Message, kw_only=True):
    """One transactional id."""

    transactional_id: str
    producer_id: I64
    transaction_state: str


class ListTransactionsResponse(ErrorResponse, kw_only=True):
    """Those that the asked node coordinates."""

    unknown_state_filters: list[str] = []
    transaction_states: list[ListedTransaction] = []
