"""The settings of the audit log: a part of the table of `settings.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hapax.runtime.setting_types import Between, Principals


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    audit_log_destination: Literal["none", "stdout", "file"] = "none"
    """Where audit events go, as lines of JSON: nowhere, to standard output, or into files in `audit.log.dir`."""
    audit_log_dir: str = ""
    """Folder of the audit files, needed with `audit.log.destination=file`. Each process writes its own, named after it:
    `broker-0.jsonl`. Processes may share the folder."""
    audit_log_max_bytes: Annotated[int, Between(1024)] = 100 << 20
    """An audit file is rotated before it grows past this many bytes."""
    audit_log_max_backups: Annotated[int, Between(0, 1000)] = 10
    """Number of rotated audit files that are kept."""
    audit_log_max_events: Annotated[int, Between(1)] = 10
    """Audit events of one kind that one principal may cause in a second: logins, refusals, aborted transactions, fenced
    producers. Those above are counted, and the count is written. Changes of the cluster are all written."""
    audit_log_excluded_principals: Principals = ""
    """Principals, separated by semicolons, whose logins, refusals and transactions are not recorded. Their changes of
    the cluster are."""
