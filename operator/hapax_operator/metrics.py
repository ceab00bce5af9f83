"""The operator's metrics. It also has the controller's, which runs in the same process."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter, gauge

LEADING: Final = gauge("hapax_operator_leading", "1 while this process reconciles the resources.")
RECONCILES: Final = counter("hapax_operator_reconciles_total", "Reconciliations of a Topic or TransactionalProducer.")
FAILED: Final = counter("hapax_operator_reconcile_failures_total", "Reconciliations that failed and are retried.")
USERS_RECONCILED: Final = counter("hapax_operator_user_reconciles_total", "Reconciliations of a User.")
USERS_FAILED: Final = counter(
    "hapax_operator_user_reconcile_failures_total", "Reconciliations of a User that failed and are retried.")
