"""The REST form of configuration values, for topics and nodes."""

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
        description="topic: set for this topic; node: from the settings of the node, or of the topic's brokers; "
        "default: set nowhere.", examples=["node"])
    default: str | None = Field(description="The value that applies where nothing is set.")
    meaning: str


class ConfigValues(BaseModel):
    items: list[ConfigValue]


def config_values(found: Mapping[str, client.ConfigValue]) -> Response:
    return answer({"items": [{"name": name, **each._asdict()} for name, each in found.items()]})
