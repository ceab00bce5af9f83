"""The operator's process: a candidate for the cluster's controller, and the reconciler of the resources.

The two share only the view of the cluster. The controller has its own leader election in the metadata store, and does
not need the API server. One of several operators reconciles (`leadership`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

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
from hapax_operator.api import KubeApi, NoApiServer, login
from hapax_operator.apply import PolicyWriter
from hapax_operator.brokers import BrokerReconciler
from hapax_operator.clusters import Clusters
from hapax_operator.leadership import lead
from hapax_operator.metrics import LEADING
from hapax_operator.mirrors import MirrorReconciler
from hapax_operator.neighbours import first_look, keep_looking
from hapax_operator.outside import AddressKeeper
from hapax_operator.racks import RackKeeper
from hapax_operator.reconciler import Reconciler
from hapax_operator.resources import MIRRORS, POOLS, USERS, Meta, Ref
from hapax_operator.rolls import BROKER, COORDINATOR, Rolled, RollKeeper
from hapax_operator.spark_resource import DEFAULT_ACCOUNT
from hapax_operator.sweep import WatchSweep
from hapax_operator.users import ClusterAccess, UserReconciler
from hapax_operator.watching import STATEFUL_SETS, Watching, pool, resources

log = telemetry.logger("operator")

_LOGIN_AGAIN_S: Final = 5.0
_ONE_TENANT: Final = AccessFile()


class OperatorService:
    """Composed by `start`."""

    def __init__(
        self, controller: ControllerService, ports: Ports, namespaces: Sequence[str], metrics: telemetry.Metrics,
        on_lost: Callable[[str], None], brokers: str, access: ClusterAccess,
        client: Mapping[str, str], spark_account: str, rolled: Sequence[Rolled] = (), least_in_sync: int = 1,
        cluster: str = "", rack_label: str = "", outside: str = "",
    ) -> None:
        self._rack_label = rack_label
        self._outside = outside
        self._addresses: AddressKeeper | None = None
        self._racks: RackKeeper | None = None
        self._clusters = Clusters(cluster)
        self._looking: Task | None = None
        self._controller = controller
        self._ports = ports
        self._namespaces = namespaces
        self._brokers = brokers
        self._access = access
        self._client = client
        self._spark_account = spark_account
        self._rolled = rolled
        self._least_in_sync = least_in_sync
        self._metrics = metrics
        self._on_lost = on_lost
        self._leading = metrics.gauge(LEADING)
        self._api: KubeApi | None = None
        self._reconciler: Reconciler | None = None
        self._users: UserReconciler | None = None
        self._mirrors: MirrorReconciler | None = None
        self._pool: BrokerReconciler | None = None
        self._rolls: RollKeeper | None = None
        self._watching: Watching | None = None
        self._sweep: WatchSweep | None = None
        self._reign: Task | None = None
        self._starts = ""
        """Why this process, which leads, does not watch the resources yet; empty: it does, or does not lead."""

    def ready(self) -> str:
        """The controller's readiness, and while this process leads the operators that of its watches. Failover does
        not need the API server: other processes find the controller in the metadata store, ready or not."""
        return self._controller.ready() or self._starts or ("" if self._sweep is None else self._sweep.ready())

    def start(self) -> None:
        self._reign = supervision.vital(self._lead(), "operator", self._failed)

    async def drain(self) -> None:
        await self._controller.drain()

    async def close(self) -> None:
        await supervision.end(self._reign, self._looking)
        if self._sweep is not None:
            await self._sweep.close()
        if self._watching is not None:
            await asyncio.to_thread(self._watching.close)
        if self._reconciler is not None:
            await self._reconciler.close()
        if self._users is not None:
            await self._users.close()
        if self._mirrors is not None:
            await self._mirrors.close()
        if self._pool is not None:
            await self._pool.close()
        if self._racks is not None:
            await self._racks.close()
        if self._addresses is not None:
            await self._addresses.close()
        if self._rolls is not None:
            await self._rolls.close()
        if self._api is not None:
            await self._api.close()
        await self._controller.close()

    async def _lead(self) -> None:
        view, registration = self._controller.view, self._controller.registration
        assert registration is not None
        leads = await lead(self._ports.metadata, view.keys.prefix, registration)
        fences = (registration.fence(), leads)
        self._starts = "the API server has not been asked for other clusters and the resources yet"
        self._api = api = await self._logged_in()
        administration = Administration(view, self._ports.network)
        self._reconciler = reconciler = Reconciler(
            view, administration, api, self._ports.clock, self._ports.random, self._metrics,
            PolicyWriter(self._ports.metadata, view, fences), self._access.file.policy,
            self._client, self._spark_account, self._clusters)
        reconciler.start()
        self._users = users = UserReconciler(
            view, administration, api, self._ports.clock, self._ports.random, self._metrics, self._access,
            self._clusters)
        users.start()
        self._mirrors = mirrors = MirrorReconciler(
            api, self._ports.clock, self._ports.random, self._metrics, self._access, self._clusters)
        mirrors.start()
        scopes = [resources(self._namespaces)]
        if self._brokers:
            namespace, _, name = self._brokers.partition("/")
            scopes.append(pool(namespace, name))
            self._pool = pool_keeper = BrokerReconciler(
                view, administration, api, self._ports.clock, self._ports.random, namespace, name,
                self._ports.metadata)
            if self._rack_label:
                self._racks = racks = RackKeeper(
                    view, api, self._ports.random, self._ports.metadata, fences, namespace, name, self._rack_label,
                    pool_keeper.wake)
                pool_keeper.rackless = lambda: racks.unknown
                racks.start()
            self._addresses = addresses = AddressKeeper(
                view, api, self._ports.random, self._ports.metadata, fences, namespace, self._outside,
                pool_keeper.wake)
            if self._outside:
                pool_keeper.outside = lambda: addresses.services
            addresses.start()
            pool_keeper.start()
        if self._rolled:
            self._rolls = RollKeeper(
                view, api, self._ports.clock, self._ports.random, self._ports.metadata,
                self._brokers.partition("/")[0], self._rolled, self._least_in_sync)
            self._rolls.start()
        await first_look(self._clusters, api, announces=self._pool is not None)

        def changed() -> None:
            reconciler.look_again()
            users.look_again()
            mirrors.look_again()

        self._looking = supervision.keep(
            partial(keep_looking, self._clusters, api, changed), "clusters", self._ports.random)
        loop, told = asyncio.get_running_loop(), Reconcilers(reconciler, users, mirrors, self._pool)

        def seen(plural: str, kind: str | None, body: Mapping[str, Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(told.event, plural, kind, body)

        self._watching = Watching(scopes, seen)
        sweep = WatchSweep(
            api, self._ports.random, self._namespaces, told, self._watching.restart, self._watching.leave_out,
            self._metrics)
        await sweep.look_for_rights()
        self._watching.start()
        self._sweep = sweep
        self._sweep.start()
        self._starts = ""
        self._leading.set(1)
        log.info("this operator is the leader and reconciles", namespaces=",".join(self._namespaces) or "all")

    async def _logged_in(self) -> KubeApi:
        while True:
            try:
                api = KubeApi(await login())
                await api.start()
                return api
            except (NoApiServer, OSError, ValueError) as error:
                log.warning("cannot find the API server, trying again", error=error)
                await asyncio.sleep(_LOGIN_AGAIN_S)

    def _failed(self, error: BaseException) -> None:
        self._on_lost(f"the operator's task failed: {error!r}")


class Reconcilers:
    """Passes on what the watches and the sweep report, to the reconciler of that kind."""

    def __init__(
        self, reconciler: Reconciler, users: UserReconciler, mirrors: MirrorReconciler,
        brokers: BrokerReconciler | None,
    ) -> None:
        self._reconciler = reconciler
        self._own: dict[str, UserReconciler | MirrorReconciler] = {USERS: users, MIRRORS: mirrors}
        """Of the kinds that have one of their own."""
        self._brokers = brokers

    def event(self, plural: str, kind: str | None, body: Mapping[str, Any]) -> None:
        metadata = body["metadata"]
        if plural in (POOLS, STATEFUL_SETS):
            if self._brokers is not None:
                self._brokers.wake()
        elif kind == "DELETED":
            self.gone(Ref(plural, metadata["namespace"], metadata["name"]), metadata["uid"])
        else:
            self.seen(plural, body)

    def seen(self, plural: str, body: Mapping[str, Any]) -> None:
        if own := self._own.get(plural):
            own.seen(body)
        else:
            self._reconciler.seen(plural, body)

    def gone(self, ref: Ref, uid: str) -> None:
        (self._own.get(ref.plural) or self._reconciler).gone(ref, uid)

    def metas(self, plural: str) -> Iterable[Meta]:
        own = self._own.get(plural)
        return self._reconciler.resources.metas(plural) if own is None else own.metas()

    def meta(self, ref: Ref) -> Meta | None:
        own = self._own.get(ref.plural)
        known = self._reconciler.resources.get(ref) if own is None else own.get(ref)
        return None if known is None else known.meta


async def start(
    ports: Ports, settings: Settings, *, on_lost: Callable[[str], None], http_address: str = "",
    metrics: telemetry.Metrics | None = None, namespaces: Sequence[str] = (), brokers: str = "",
    access: AccessFile = _ONE_TENANT, client_config: str = "",
    spark_account: str = DEFAULT_ACCOUNT, coordinators: str = "", cluster: str = "",
    rack_label: str = "", outside: str = "",
) -> OperatorService:
    """Returns when the controller is a candidate. `brokers`: namespace/name of the StatefulSet whose `replicas` it
    sets, and whose pods it replaces; `coordinators`: another one of that namespace whose pods it replaces.
    `client_config`: a file of client settings. `spark_account`: of Spark jobs that name no service account. `cluster`:
    as of `Clusters`. `rack_label`: that of the nodes whose value is the rack; empty: none is looked for.
    `outside`: selector of the Services whose load balancers' addresses clients outside are told; empty: none. Raises
    SettingsError for that file, and the errors of `hapax.controller.service.start`."""
    metrics = metrics or telemetry.Metrics()
    client = _read_client(client_config) if client_config else {}
    controller = await start_controller(
        ports, settings, on_lost=on_lost, http_address=http_address, metrics=metrics)
    reserved = principals_of(settings.super_users) | principals_of(settings.node_principals)
    service = OperatorService(controller, ports, namespaces, metrics, on_lost, brokers, ClusterAccess(
        replace(access, policy=access.policy.reserving(reserved)), bool(settings.authorizer_class_name),
        PrincipalRules(settings.ssl_principal_mapping_rules), brokers.partition("/")[0]), client, spark_account,
        [Rolled(each.partition("/")[2], role)
         for each, role in ((brokers, BROKER), (coordinators, COORDINATOR)) if each], settings.min_insync_replicas,
        cluster, rack_label, outside)
    service.start()
    return service


def _read_client(path: str) -> dict[str, str]:
    """Raises SettingsError."""
    try:
        return read_properties(Path(path))
    except (OSError, BadProperties) as error:
        raise SettingsError(f"--client-config: {error}") from None
