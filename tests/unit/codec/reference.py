"""An independent codec of a record: kafka-python's, made from the schema in `hapax/codec/schemas`."""

from __future__ import annotations

import json
import re
from importlib.resources import files

from kafka.protocol.data_container import DataContainer
from kafka.protocol.schemas import StructField


def reference(name: str) -> type[DataContainer]:
    text = (files("hapax.codec") / "schemas" / f"{name}.json").read_text()
    struct = StructField(json.loads(re.sub(r"(?m)^\s*//.*\n", "", text)))
    made = type(name, (DataContainer,), {"_struct": struct})
    struct.set_data_class(made)
    return made
