"""The operator's metrics. It also has the controller's, which runs in the same process."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter, gauge

LEADING: Final = gauge("hapax_operator_leading", "1 while this process reconciles the resources.")
RECONCILES: Final = counter("hapax_operator_reconciles_total", "Reconciliations of a Topic or TransactionalProducer.")
FAILED: Final = counter("hapax_operator_reconcile_failures_total", "Reconciliations that failed and are retried.")
MISSED: Final = counter(
    "hapax_operator_watch_missed_total",
    "Changes of resources that no watch reported within ten seconds, found by listing the resources.")
UNREADABLE: Final = gauge(
    "hapax_operator_namespaces_unreadable",
    "Namespaces that the operator is to watch and may not read: they or its rights there are gone.")
USERS_RECONCILED: Final = counter("hapax_operator_user_reconciles_total", "Reconciliations of a User.")
USERS_FAILED: Final = counter(
    "hapax_operator_user_reconcile_failures_total", "Reconciliations of a User that failed and are retried.")

MIRRORS_RECONCILED: Final = counter("hapax_operator_mirror_reconciles_total", "Reconciliations of a Mirror.")
MIRRORS_FAILED: Final = counter(
    "hapax_operator_mirror_reconcile_failures_total", "Reconciliations of a Mirror that failed and are retried.")
MIRRORS_NOT_READY: Final = gauge(
    "hapax_operator_mirrors_not_ready", "Mirrors that are not ready, without those that are suspended.")

ETCD_SETTLED: Final = gauge("hapax_etcd_settled", "1 while etcd has all its members, and all are healthy.")
ETCD_WANTED: Final = gauge("hapax_etcd_members_wanted", "Wanted members of etcd.")
ETCD_HEALTHY: Final = gauge("hapax_etcd_members_healthy", "Healthy members of etcd that have a vote.")
ETCD_ALARMS: Final = gauge("hapax_etcd_alarms", "Alarms that members of etcd have raised.")
ETCD_DATABASE: Final = gauge("hapax_etcd_database_bytes", "Size of etcd's largest database file.", unit="bytes")
ETCD_USED: Final = gauge(
    "hapax_etcd_database_used_bytes", "The most that a member's database file holds.", unit="bytes")
ETCD_QUOTA: Final = gauge("hapax_etcd_quota_bytes", "Size at which etcd takes no more writes.", unit="bytes")
ETCD_SNAPSHOT: Final = gauge(
    "hapax_etcd_last_snapshot_seconds", "When the last snapshot of etcd was taken, in Unix seconds; 0: never.",
    unit="seconds")
ETCD_SNAPSHOT_LATE: Final = gauge(
    "hapax_etcd_snapshot_late", "1 while the last snapshot of etcd failed, or is older than twice its interval.")
ETCD_SNAPSHOTS_FAILED: Final = counter("hapax_etcd_snapshot_failures_total", "Snapshots of etcd that failed.")
ETCD_DEFRAGMENTED: Final = counter("hapax_etcd_defragmentations_total", "Defragmentations of a member of etcd.")
ETCD_STEPS: Final = counter("hapax_etcd_steps_total", "Steps by which the keeper changed etcd's members.")
