"""What a configuration's values look like, of topics and of nodes."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Response
from pydantic import BaseModel, Field

from hapax import client
from hapax.admin.answers import answer


class ConfigValue(BaseModel):
    name: str
    value: str | None
    source: str = Field(
        description="topic: set for the topic; node: the setting that its brokers, or the node, were started with; "
        "default.", examples=["node"])
    default: str | None = Field(description="What holds where nothing is set.")
    meaning: str


class ConfigValues(BaseModel):
    items: list[ConfigValue]


def config_values(found: Mapping[str, client.ConfigValue]) -> Response:
    return answer({"items": [{"name": name, **each._asdict()} for name, each in found.items()]})
