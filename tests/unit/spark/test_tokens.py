"""What names a batch write that is part of a micro-batch (`foreachBatch`)."""

from __future__ import annotations

import pytest

from hapax_spark.options import OptionError, Options, parse
from hapax_spark.tokens import Token


def options(**given: str) -> Options:
    return parse({"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "out", **given})


def test_a_write_without_a_name_is_refused_in_a_micro_batch() -> None:
    chosen = options()
    with pytest.raises(OptionError, match=r"part of batch 3 .* Give 'txnAppId' and, as 'txnVersion', the batch id"):
        Token.for_write(chosen, "write").in_micro_batch(chosen, 3)


@pytest.mark.parametrize(("version", "batch", "given", "allowed"), [
    ("3", 3, {}, False),
    ("3", 3, {"allowUnknownHistory": "true"}, True),
    ("1767225600", 3, {}, True),  # versions that are counted otherwise may begin anywhere
])
def test_a_batchs_version_needs_its_history_as_in_a_stream(
    version: str, batch: int, given: dict[str, str], allowed: bool
) -> None:
    chosen = options(txnAppId="app", txnVersion=version, **given)
    token = Token.for_write(chosen, "write").in_micro_batch(chosen, batch)
    assert (token.value, token.allow_unknown_history) == (int(version), allowed)
