"""What a SparkJob, or the section `spark` of a TransactionalProducer, says of its job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Final, NamedTuple

DEFAULT_ACCOUNT: Final = "hapax-spark"
"""The service account that the chart creates for drivers, in a release of the full name `hapax`."""
CHECKPOINT_PATH: Final = "/checkpoint"

_NOT_OF_A_RUN: Final = frozenset({
    "suspend", "back_off", "give_up_after_s", "ephemeral", "schedule", "history_limit"})
"""Fields that do not affect a run itself, so that a change of them ends no run."""


class BackOff(NamedTuple):
    """Delay before the next run after a failure. It doubles with each consecutive failure, up to `longest_s`."""

    first_s: int = 10
    longest_s: int = 300
    reset_after_s: int = 600
    """After a run of at least this many seconds, a failure counts as the first one."""


FORBID: Final = "Forbid"
REPLACE: Final = "Replace"


class Schedule(NamedTuple):
    """When runs start."""

    cron: str
    time_zone: str = "UTC"
    policy: str = FORBID
    """What happens to a run that goes on at the time of the next: Forbid lets it end first, Replace ends it."""
    deadline_s: int = -1
    """A time that passed longer ago starts no run; -1: the last one does, however long ago."""


class Dependencies(NamedTuple):
    """What Spark loads when a run starts."""

    packages: tuple[str, ...] = ()
    """As group:artifact:version."""
    repositories: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    py_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


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
    schedule: Schedule | None = None
    """None: a run starts at once."""
    history_limit: int = 1
    """How many ended runs are kept, each with its driver's pod."""
    env: tuple[Mapping[str, Any], ...] = ()
    """As in a container; also of the executors, as the following ones are."""
    env_from: tuple[Mapping[str, Any], ...] = ()
    volumes: tuple[Mapping[str, Any], ...] = ()
    volume_mounts: tuple[Mapping[str, Any], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    driver_template: Mapping[str, Any] = field(default_factory=dict)
    """A pod's metadata and spec, into which the operator puts what it needs."""
    executor_template: Mapping[str, Any] = field(default_factory=dict)
    dependencies: Dependencies = field(default_factory=Dependencies)
    authenticate: bool = False
    """Whether driver and executors show each other a secret, and encrypt what they send."""
    event_log: str = ""
    """Where Spark's event logs are kept: a folder of a volume, or an object store's address."""
    ui: bool = False
    """Whether a Service leads to the driver's UI and metrics."""

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


def same_job(one: SparkSpec, other: SparkSpec | None) -> bool:
    """Whether the two describe one job. How many ended runs are kept has another default in each form."""
    return other is not None and replace(one, history_limit=other.history_limit) == other


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
        schedule=_schedule(spark.get("schedule")), history_limit=int(spark.get("historyLimit", 1)),
        env=_objects(spark.get("env")), env_from=_objects(spark.get("envFrom")),
        volumes=_objects(spark.get("volumes")), volume_mounts=_objects(spark.get("volumeMounts")),
        tolerations=_objects(spark.get("tolerations")), affinity=dict(spark.get("affinity") or {}),
        driver_template=dict(spark.get("driverTemplate") or {}),
        executor_template=dict(spark.get("executorTemplate") or {}),
        dependencies=_dependencies(spark.get("dependencies") or {}), authenticate=spark.get("authenticate") is True,
        event_log=str((spark.get("eventLog") or {}).get("path", "")),
        ui=(spark.get("ui") or {}).get("service") is True,
    )


def _schedule(given: Mapping[str, Any] | None) -> Schedule | None:
    if given is None:
        return None
    return Schedule(
        str(given["cron"]), str(given.get("timeZone", "UTC")), str(given.get("concurrencyPolicy", FORBID)),
        int(given.get("startingDeadlineSeconds", -1)))


def _dependencies(given: Mapping[str, Any]) -> Dependencies:
    return Dependencies(
        _texts(given.get("packages")), _texts(given.get("repositories")), _texts(given.get("jars")),
        _texts(given.get("pyFiles")), _texts(given.get("files")))


def _objects(value: Any) -> tuple[Mapping[str, Any], ...]:
    if value is not None and not (isinstance(value, list) and all(isinstance(each, Mapping) for each in value)):
        raise TypeError("a list of objects is required")
    return tuple(value or ())


def _texts(value: Any) -> tuple[str, ...]:
    if value is not None and not isinstance(value, list):
        raise TypeError("a list is required")
    return tuple(str(each) for each in value or ())
