"""The keeper's file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hapax_operator.certificates_secrets import TOKENS, Issuers, content, holder_seen
from hapax_operator.certificates_spec import BadSpec, parse_spec
from hapax_operator.plan_certificates import Holder

FILE: dict[str, Any] = {
    "cluster": "hapax", "namespace": "prod", "labels": {}, "issuers": "i", "certManager": False,
    "certificateDays": 90, "authorityDays": 91, "overlapSeconds": {"services": 900, "clients": 30 * 86_400},
    "secrets": [], "etcd": {"endpoints": ["e:2379"]}, "clients": {"bootstrap": "b:9092", "folder": "/c"}}


@pytest.mark.parametrize("changed", [
    {"authorityDays": 90}, {"overlapSeconds": {"services": 31 * 86_400, "clients": 0}}])
def test_an_authority_that_would_end_before_the_next_one_signs_is_refused(changed: dict[str, Any]) -> None:
    """It is replaced with a third of its time left, and the next one signs an overlap later."""
    assert parse_spec(json.dumps(FILE)).authority_s == 91 * 86_400
    with pytest.raises(BadSpec, match="must be more than three times the overlap"):
        parse_spec(json.dumps({**FILE, **changed}))


def test_the_keys_of_tokens_follow_the_api_server_and_stay_while_it_does_not_tell_them() -> None:
    spec, holder = parse_spec(json.dumps(FILE)), Holder("broker", tokens=True)
    made = content(holder, spec, Issuers(), {}, (), {}, {}, 0, b"first")
    assert made[TOKENS] == b"first" and holder_seen(holder, spec, made, b"first").complete
    assert not holder_seen(holder, spec, made, b"second").complete, "a new key would never arrive"
    assert holder_seen(holder, spec, made, None).complete
    assert content(holder, spec, Issuers(), made, (), {}, {}, 0, None)[TOKENS] == b"first"
    assert TOKENS not in content(Holder("pid"), spec, Issuers(), {}, (), {}, {}, 0, b"first")
