"""The rack of this broker: its setting, or what the metadata store says of its machine.

The machine of a pod is known when the pod starts, but not the machine's rack: pods may not read that, and it may be
found only later. So the broker serves without a rack until then, and takes each new one over while it runs. Everyone
else reads it in the broker's registration.
"""

from __future__ import annotations

from hapax.runtime import telemetry
from hapax.runtime.cluster import Changes, ClusterView
from hapax.runtime.registration import Registration
from hapax.runtime.settings import Settings

log = telemetry.logger("rack")


class OwnRack:
    def __init__(self, view: ClusterView, settings: Settings) -> None:
        self._view = view
        self._given = settings.broker_rack or ""
        self._machine = settings.broker_machine
        self._registration: Registration | None = None
        self._told = ""

    @property
    def name(self) -> str:
        """Empty: there is none, or it is not known yet."""
        found = self._view.racks.machines.get(self._machine, "") if self._machine else ""
        return self._given or found

    def follow(self, registration: Registration) -> None:
        """From now on the registration has the rack, as long as the view lives."""
        self._registration = registration
        self._told = registration.record.rack
        self._view.on_change(self._changed)
        self._tell()

    def _changed(self, changes: Changes) -> None:
        if changes.racks:
            self._tell()

    def _tell(self) -> None:
        assert self._registration is not None
        if self.name != self._told:
            log.info("this broker's rack is another one", machine=self._machine, rack=self.name, former=self._told)
            self._told = self.name
            self._registration.move(self.name)
