"""The operator's process: a candidate for the cluster's controller, and the reconciler of the resources.

The two share only the view of the cluster. The controller has its own leader election in the metadata store, and does
not need the API server. One of several operators reconciles (`leadership`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import kopf

from hapax.client.errors import SettingsError as BadProperties
from hapax.client.properties import read_properties
from hapax.controller.service import ControllerService
from hapax.controller.service import start as start_controller
from hapax.core.access.principal_rules import PrincipalRules
from hapax.runtime import supervision, telemetry
from hapax.runtime.access import principals_of
from hapax.runtime.administration import Administration
from hapax.runtime.ports import Ports, Task
from hapax.runtime.settings import Settings, SettingsError
from hapax_operator.access_file import AccessFile
from hapax_operator.api import KubeApi, login
from hapax_operator.apply import PolicyWriter
from hapax_operator.brokers import BrokerReconciler
from hapax_operator.leadership import lead
from hapax_operator.metrics import LEADING
from hapax_operator.reconciler import Reconciler
from hapax_operator.resources import USERS, Ref
from hapax_operator.users import ClusterAccess, UserReconciler
from hapax_operator.watching import Watching

log = telemetry.logger("operator")

_LOGIN_AGAIN_S: Final = 5.0
_ONE_TENANT: Final = AccessFile()


class OperatorService:
    """Composed by `start`."""

    def __init__(
        self, controller: ControllerService, ports: Ports, namespaces: Sequence[str], metrics: telemetry.Metrics,
        on_lost: Callable[[str], None], brokers: str, access: ClusterAccess,
        client: Mapping[str, str],
    ) -> None:
        self._controller = controller
        self._ports = ports
        self._namespaces = namespaces
        self._brokers = brokers
        self._access = access
        self._client = client
        self._metrics = metrics
        self._on_lost = on_lost
        self._leading = metrics.gauge(LEADING)
        self._api: KubeApi | None = None
        self._reconciler: Reconciler | None = None
        self._users: UserReconciler | None = None
        self._pool: BrokerReconciler | None = None
        self._watching: Watching | None = None
        self._reign: Task | None = None

    def ready(self) -> str:
        """The controller's readiness: other processes rely on failover, which does not need the API server."""
        return self._controller.ready()

    def start(self) -> None:
        self._reign = supervision.vital(self._lead(), "operator", self._failed)

    async def drain(self) -> None:
        await self._controller.drain()

    async def close(self) -> None:
        await supervision.end(self._reign)
        if self._watching is not None:
            await asyncio.to_thread(self._watching.close)
        if self._reconciler is not None:
            await self._reconciler.close()
        if self._users is not None:
            await self._users.close()
        if self._pool is not None:
            await self._pool.close()
        if self._api is not None:
            await self._api.close()
        await self._controller.close()

    async def _lead(self) -> None:
        view, registration = self._controller.view, self._controller.registration
        assert registration is not None
        leads = await lead(self._ports.metadata, view.keys.prefix, registration)
        self._api = api = await self._logged_in()
        administration = Administration(view, self._ports.network)
        self._reconciler = reconciler = Reconciler(
            view, administration, api, self._ports.clock, self._ports.random, self._metrics,
            PolicyWriter(self._ports.metadata, view, (registration.fence(), leads)), self._access.file.policy,
            self._client)
        reconciler.start()
        self._users = users = UserReconciler(
            view, administration, api, self._ports.clock, self._ports.random, self._metrics, self._access)
        users.start()
        if self._brokers:
            namespace, _, name = self._brokers.partition("/")
            self._pool = BrokerReconciler(
                view, administration, api, self._ports.clock, self._ports.random, namespace, name,
                self._ports.metadata)
            self._pool.start()
        loop = asyncio.get_running_loop()

        def seen(plural: str, kind: str | None, body: Mapping[str, Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_tell, reconciler, users, plural, kind, body)

        self._watching = Watching(self._namespaces, seen)
        self._watching.start()
        self._leading.set(1)
        log.info("this operator is the leader and reconciles", namespaces=",".join(self._namespaces) or "all")

    async def _logged_in(self) -> KubeApi:
        while True:
            try:
                api = KubeApi(login())
                await api.start()
                return api
            except (kopf.LoginError, OSError, ValueError, KeyError) as error:
                log.warning("cannot find the API server, trying again", error=error)
                await asyncio.sleep(_LOGIN_AGAIN_S)

    def _failed(self, error: BaseException) -> None:
        self._on_lost(f"the operator's task failed: {error!r}")


def _tell(
    reconciler: Reconciler, users: UserReconciler, plural: str, kind: str | None, body: Mapping[str, Any]
) -> None:
    if kind == "DELETED":
        metadata = body["metadata"]
        of = users if plural == USERS else reconciler
        of.gone(Ref(plural, metadata["namespace"], metadata["name"]), metadata["uid"])
    elif plural == USERS:
        users.seen(body)
    else:
        reconciler.seen(plural, body)


async def start(
    ports: Ports, settings: Settings, *, on_lost: Callable[[str], None], http_address: str = "",
    metrics: telemetry.Metrics | None = None, namespaces: Sequence[str] = (), brokers: str = "",
    access: AccessFile = _ONE_TENANT, client_config: str = "",
) -> OperatorService:
    """Returns when the controller is a candidate. `brokers`: namespace/name of the StatefulSet whose `replicas` it
    sets. `client_config`: a file of client settings. Raises SettingsError for that file, and the errors of
    `hapax.controller.service.start`."""
    metrics = metrics or telemetry.Metrics()
    client = _read_client(client_config) if client_config else {}
    controller = await start_controller(
        ports, settings, on_lost=on_lost, http_address=http_address, metrics=metrics)
    reserved = principals_of(settings.super_users) | principals_of(settings.node_principals)
    service = OperatorService(controller, ports, namespaces, metrics, on_lost, brokers, ClusterAccess(
        replace(access, policy=access.policy.reserving(reserved)), bool(settings.authorizer_class_name),
        PrincipalRules(settings.ssl_principal_mapping_rules), brokers.partition("/")[0]), client)
    service.start()
    return service


def _read_client(path: str) -> dict[str, str]:
    """Raises SettingsError."""
    try:
        return read_properties(Path(path))
    except (OSError, BadProperties) as error:
        raise SettingsError(f"--client-config: {error}") from None
