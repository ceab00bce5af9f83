"""The settings of consumer groups in the form that the pure machine needs: the cluster's, and each group's own."""

from __future__ import annotations

from hapax.core.group.configs import Bounds, configured
from hapax.core.group.values import GroupLimits
from hapax.runtime.cluster import ClusterView, GroupConfigView
from hapax.runtime.settings import Settings


def group_limits(settings: Settings) -> GroupLimits:
    return GroupLimits(
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        max_size=settings.group_max_size,
        max_metadata_bytes=settings.group_max_metadata_bytes,
        consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        consumer_max_size=settings.group_consumer_max_size,
        consumer_assignors=tuple(settings.group_consumer_assignors.split(",")),
        consumer_assignment_interval_ms=settings.group_consumer_assignment_interval_ms,
        consumer_regex_refresh_ms=settings.group_consumer_regex_refresh_interval_ms,
        migration_policy=settings.group_consumer_migration_policy,
    )


def group_bounds(settings: Settings) -> Bounds:
    """The bounds of groups' configurations."""
    return Bounds(
        (settings.group_consumer_min_session_timeout_ms, settings.group_consumer_max_session_timeout_ms),
        (settings.group_consumer_min_heartbeat_interval_ms, settings.group_consumer_max_heartbeat_interval_ms),
        (settings.group_consumer_min_assignment_interval_ms, settings.group_consumer_max_assignment_interval_ms),
    )


class LimitsOfGroups:
    """The limits that apply to each group at present. Groups without a configuration share one value."""

    def __init__(self, view: ClusterView, settings: Settings) -> None:
        self._view = view
        self._limits = group_limits(settings)
        self._bounds = group_bounds(settings)
        self._made: dict[str, tuple[GroupConfigView, GroupLimits]] = {}
        """Group -> (its configuration, the limits computed from it), for groups that have asked."""

    def __call__(self, group: str) -> GroupLimits:
        config = self._view.group_config(group)
        if config is None:
            if group in self._made:
                del self._made[group]
            return self._limits
        made = self._made.get(group)
        if made is None or made[0] is not config:
            made = self._made[group] = config, configured(self._limits, config.config, self._bounds)
        return made[1]
