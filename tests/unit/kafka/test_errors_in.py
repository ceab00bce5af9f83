"""Every error code of an answer is found, wherever its schema has it."""

from __future__ import annotations

from hapax.core.errors import ErrorCode, error_name
from hapax.kafka.errors_in import errors_in
from hapax.wire.messages import AddPartitionsToTxnResponse, EndTxnResponse, MetadataResponse, TxnOffsetCommitResponse


def test_at_the_top_by_topic_and_by_partition() -> None:
    assert list(errors_in(EndTxnResponse(error_code=47))) == [47]
    assert list(errors_in(EndTxnResponse(error_code=0))) == []
    topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    partition = topic.TxnOffsetCommitResponsePartition
    answer = TxnOffsetCommitResponse(topics=[
        topic(name="a", partitions=[partition(partition_index=0, error_code=0),
                                    partition(partition_index=1, error_code=16)]),
        topic(name="b", partitions=[partition(partition_index=0, error_code=22)]),
    ])
    assert list(errors_in(answer)) == [16, 22]


def test_of_partitions_added_to_a_transaction() -> None:
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    partition = topic.AddPartitionsToTxnPartitionResult
    answer = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[
        topic(name="a", results_by_partition=[partition(partition_index=0, partition_error_code=29)])])
    assert list(errors_in(answer)) == [29]


def test_an_answer_without_lists_and_one_that_is_no_message() -> None:
    assert list(errors_in(MetadataResponse(topics=None))) == []
    assert list(errors_in(object())) == []


def test_codes_have_names() -> None:
    assert error_name(ErrorCode.NOT_COORDINATOR) == "NOT_COORDINATOR"
    assert error_name(31999) == "31999"
