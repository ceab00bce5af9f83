"""What the operator runs as a Spark job: a SparkJob with its producer, or the `spark` section of a
TransactionalProducer, the form of v1alpha1. Pure.

Each form keeps the record of its runs in its own status. A run that goes on while its section becomes a SparkJob is
handed over: the section is removed first, and from then on its record changes only by the steps of `plan_handover`. The
SparkJob copies it, then the producer's is cleared, on condition that it is the one that was copied. While the producer
has a record, the SparkJob starts and ends nothing. So exactly one record counts at any time, wherever an operator dies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hapax_operator.resources import SPARK_FINALIZER, Meta, ProducerResource, SparkJobResource
from hapax_operator.spark_resource import SparkSpec

NO_PRODUCER: Final = "NoProducer"
LEASE_PRODUCER: Final = "LeaseProducer"
PRODUCER_HAS_JOB: Final = "ProducerHasJob"
HINDRANCES: Final = {
    NO_PRODUCER: "there is no TransactionalProducer of the name in spec.producer.name",
    LEASE_PRODUCER: "its TransactionalProducer is a lease, which has no transactions for a Spark job to write in",
    PRODUCER_HAS_JOB: "its TransactionalProducer has a job of its own in spec.spark; remove that section, or carry it "
                      "over with the annotation hapax.dev/carry-over"}
"""Why a SparkJob's producer admits no run."""


class Form(NamedTuple):
    record: str
    """The status field of the record."""
    progress: str
    condition: str
    """The prefix of the conditions' types."""
    infix: str
    """Tells the drivers' names of the two forms apart."""


SECTION: Final = Form("spark", "sparkProgress", "Spark", "driver")
JOB: Final = Form("record", "progress", "", "spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWork:
    meta: Meta
    """Of the resource that has the record."""
    form: Form
    producer: ProducerResource | None
    """None: it does not exist."""
    spark: SparkSpec | None
    record: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    """As the status shows it."""
    acts: bool = True
    managed: bool = True
    hindered: str = ""
    """A key of `HINDRANCES`, or the name of another reason not to run; empty: none."""
    owners: frozenset[str] = frozenset()
    """The uids of resources whose pods are this work's."""

    @property
    def identity(self) -> str:
        """A valid label value for any id. It is the same for all resources that describe the same id or prefix. Empty:
        there is no producer."""
        return "" if self.producer is None else identity_of(self.producer)


def identity_of(producer: ProducerResource) -> str:
    kind = "id" if producer.transactional_id else "prefix"
    told = f"{kind}:{producer.transactional_id or producer.prefix}"
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def of_section(producer: ProducerResource) -> SparkWork:
    return SparkWork(
        meta=producer.meta, form=SECTION, producer=producer, spark=producer.spark, record=producer.record or {},
        progress=producer.status.get(SECTION.progress) or {},
        acts=producer.acts, managed=producer.managed, hindered="OutsidePolicy" if producer.outside else "",
        owners=frozenset({producer.meta.uid}))


def of_job(
    job: SparkJobResource, producer: ProducerResource | None, rivals: Sequence[SparkJobResource] = ()
) -> SparkWork:
    """`rivals`: all SparkJobs of the producer, of which the oldest may run."""
    hindered = ""
    if producer is None:
        hindered = NO_PRODUCER
    elif producer.lease is not None:
        hindered = LEASE_PRODUCER
    elif producer.outside:
        hindered = "OutsidePolicy"
    elif producer.has_runs:
        hindered = PRODUCER_HAS_JOB
    elif any(each.meta.age < job.meta.age for each in rivals if each.meta.uid != job.meta.uid):
        hindered = "ResourceConflict"
    owners = {job.meta.uid}
    if producer is not None and not hindered:
        owners.add(producer.meta.uid)  # the pods of a run that was handed over
    return SparkWork(
        meta=job.meta, form=JOB, producer=producer, spark=job.spark, record=job.status.get(JOB.record) or {},
        progress=job.status.get(JOB.progress) or {},
        acts=job.acts and (producer is None or producer.acts), managed=job.managed, hindered=hindered,
        owners=frozenset(owners))


class TakeFinalizer(NamedTuple):
    """Add the SparkJob's finalizer."""


class Copy(NamedTuple):
    """Write this record to the SparkJob."""

    record: Mapping[str, Any]


class Clear(NamedTuple):
    """Remove the producer's record, unless the producer has changed since it was read."""


class DropFinalizer(NamedTuple):
    """Remove the finalizer of the producer's job."""


HandOver = TakeFinalizer | Copy | Clear | DropFinalizer


def heir(producer: ProducerResource, jobs: Sequence[SparkJobResource]) -> SparkJobResource | None:
    """The SparkJob that a producer's removed section, with a run that may go on, is handed over to."""
    if producer.spark is not None or producer.meta.deleting or not producer.has_runs:
        return None
    return next((each for each in sorted(jobs, key=lambda each: each.meta.age) if not each.meta.deleting), None)


def plan_handover(job: SparkJobResource, producer: ProducerResource) -> HandOver | None:
    """The next step for the `heir`; None: nothing is left. Each step may be repeated."""
    if SPARK_FINALIZER not in job.meta.finalizers:
        return TakeFinalizer()
    if producer.record:
        known = job.status.get(JOB.record) or {}
        wanted = {**producer.record, "identity": identity_of(producer)}
        # Numbers of runs name pods, so they never go back.
        wanted["run"] = max(wanted.get("run", 0), known.get("run", 0))
        return Clear() if known == wanted else Copy(wanted)
    return DropFinalizer() if SPARK_FINALIZER in producer.meta.finalizers else None
