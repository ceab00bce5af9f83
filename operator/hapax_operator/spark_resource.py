"""`TransactionalProducer.spec.spark`: the Spark job that writes under the resource's ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final, NamedTuple

DEFAULT_ACCOUNT: Final = "hapax-spark"
"""The service account that the chart creates for drivers, in a release of the full name `hapax`."""
CHECKPOINT_PATH: Final = "/checkpoint"

_NOT_OF_A_RUN: Final = frozenset({"suspend", "back_off", "give_up_after_s", "ephemeral"})
"""Fields that do not affect a run itself, so that a change of them ends no run."""


class BackOff(NamedTuple):
    """Delay before the next run after a failure. It doubles with each consecutive failure, up to `longest_s`."""

    first_s: int = 10
    longest_s: int = 300
    reset_after_s: int = 600
    """After a run of at least this many seconds, a failure counts as the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSpec:
    image: str
    job: str
    arguments: tuple[str, ...] = ()
    suspend: bool = False
    rerun: int = 0
    conf: Mapping[str, str] = field(default_factory=dict)
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    account: str = ""
    """Empty: that of the operator's release."""
    driver_memory: str = "1g"
    driver_resources: Mapping[str, Any] = field(default_factory=dict)
    """Empty: enough for a JVM with a heap of `driver_memory`, and Python."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    executors: int = 1
    executor_cores: int = 1
    executor_memory: str = "1g"
    checkpoint_claim: str = ""
    """A PersistentVolumeClaim. Empty: a checkpoint in a folder is deleted with the pod."""
    ephemeral: bool = False
    """Whether a checkpoint that is deleted with the pod is allowed."""
    checkpoint_path: str = CHECKPOINT_PATH
    """A folder, at which the claim is mounted, or an object store's address."""
    back_off: BackOff = field(default_factory=BackOff)
    give_up_after_s: int = 300

    @property
    def outlives_its_pod(self) -> bool:
        """Whether the next run continues from the checkpoint of the last one."""
        return bool(self.checkpoint_claim) or "://" in self.checkpoint_path

    @property
    def fingerprint(self) -> str:
        """Identifies the job of a run. Fields with their default value are left out, so that a field added
        by a later version changes no fingerprint: an upgrade of the operator must not restart every job."""
        told = {}
        for each in fields(self):
            value = getattr(self, each.name)
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            if each.name == "account" and value == DEFAULT_ACCOUNT:
                continue  # the default of a former definition, which is stored in its resources
            if each.name not in _NOT_OF_A_RUN and value != default:
                told[each.name] = value
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def read_spark(spec: Mapping[str, Any]) -> SparkSpec | None:
    """Reads a TransactionalProducer's spec; None if it has no job. Raises KeyError, TypeError, ValueError,
    AttributeError."""
    spark = spec.get("spark")
    if spark is None:
        return None
    driver, executors = spark.get("driver") or {}, spark.get("executors") or {}
    checkpoint, back_off = spark.get("checkpoint") or {}, spark.get("backOff") or {}
    return SparkSpec(
        image=str(spark["image"]), job=str(spark["job"]), arguments=_texts(spark.get("arguments")),
        suspend=spark.get("suspend") is True, rerun=int(spark.get("rerun", 0)), conf=dict(spark.get("conf") or {}),
        pull_policy=str(spark.get("imagePullPolicy", "IfNotPresent")),
        pull_secrets=_texts(spark.get("imagePullSecrets")),
        account=str(spark.get("serviceAccountName") or ""),
        driver_memory=str(driver.get("memory", "1g")), driver_resources=dict(driver.get("resources") or {}),
        node_selector=dict(spark.get("nodeSelector") or {}),
        executors=int(executors.get("instances", 1)), executor_cores=int(executors.get("cores", 1)),
        executor_memory=str(executors.get("memory", "1g")),
        checkpoint_claim=str(checkpoint.get("claimName", "")),
        checkpoint_path=str(checkpoint.get("path", CHECKPOINT_PATH)),
        ephemeral=checkpoint.get("ephemeral") is True,
        back_off=BackOff(
            int(back_off.get("firstSeconds", 10)), int(back_off.get("longestSeconds", 300)),
            int(back_off.get("resetAfterSeconds", 600))),
        give_up_after_s=int(spark.get("giveUpAfterSeconds", 300)),
    )


def _texts(value: Any) -> tuple[str, ...]:
    if value is not None and not isinstance(value, list):
        raise TypeError("a list is required")
    return tuple(str(each) for each in value or ())
