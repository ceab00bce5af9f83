"""What every process tells about itself."""

from __future__ import annotations

import asyncio
import os
import resource
from typing import Final

from hapax.runtime import supervision
from hapax.runtime.metrics import Metrics, counter, gauge
from hapax.runtime.package import package_version
from hapax.runtime.self_corrections import CORRECTIONS

BUILD: Final = gauge(
    "hapax_build_info", "Always 1; the label is this process's release.", ["version"],
    kafka="kafka.server:type=app-info")
RESIDENT_BYTES: Final = gauge("hapax_process_resident_bytes", "Resident memory of the process.", unit="bytes")
OPEN_FILES: Final = gauge(
    "hapax_process_open_files", "Open file handles.",
    kafka="java.lang:type=OperatingSystem,name=OpenFileDescriptorCount")
FILES_MAX: Final = gauge(
    "hapax_process_open_files_max", "Limit of open file handles.",
    kafka="java.lang:type=OperatingSystem,name=MaxFileDescriptorCount")
TASKS: Final = gauge("hapax_process_tasks", "Tasks of the event loop.")
TASK_FAILURES: Final = counter(
    "hapax_task_failures_total",
    "Unexpected exceptions in tasks, calls and requests, each logged with a traceback. A task that must run forever is"
    " restarted; the failure of a vital task ends the process.", ["task"])
SELF_CORRECTIONS: Final = counter(
    "hapax_self_corrections_total",
    "Corrections by sweeps that compare the intended state with the actual one, by kind. Each is a bug in Hapax: an "
    "event was lost.", ["kind"])
CPU_SECONDS: Final = counter(
    "hapax_process_cpu_seconds_total", "Processor time of the process, system calls included.", unit="seconds",
    kafka="java.lang:type=OperatingSystem,name=ProcessCpuTime")
AUDIT_EVENTS: Final = counter("hapax_audit_events_total", "Audit events that were recorded.", ["event"])
AUDIT_LEFT_OUT: Final = counter(
    "hapax_audit_events_left_out_total",
    "Audit events that were counted and not written: one principal caused too many, or the queue was full.", ["event"])
AUDIT_WRITE_FAILURES: Final = counter(
    "hapax_audit_write_failures_total", "Failed attempts to write audit lines. Each is repeated after a second.")

TLS_HANDSHAKES: Final = counter(
    "hapax_tls_handshakes_total",
    "TLS handshakes: completed, failed, timed out, or given up because there were too many.", ["listener", "outcome"],
    kafka="kafka.server:type=socket-server-metrics,name=successful-authentication-total")
TLS_DAYS_LEFT: Final = gauge(
    "hapax_tls_certificate_days_left", "Days until a listener's certificate expires; negative: since it has.",
    ["listener"])
TLS_REFUSED: Final = gauge(
    "hapax_tls_certificates_refused",
    "1: the files of a listener's certificates have changed and cannot be used, so the former ones serve; see the log.",
    ["listener"])
TLS_RELOADS: Final = counter(
    "hapax_tls_reloads_total", "How often a listener has taken over new certificates.", ["listener"])


def observe_process(metrics: Metrics) -> None:
    """Linux tells the memory and the handles; elsewhere they are absent."""
    metrics.observe(BUILD, lambda: [((package_version(),), 1)])
    metrics.observe(TASKS, lambda: len(asyncio.all_tasks()))
    metrics.observe(TASK_FAILURES, lambda: [((name,), count) for name, count in supervision.FAILURES.items()])
    metrics.observe(SELF_CORRECTIONS, lambda: [((kind,), count) for kind, count in CORRECTIONS.items()])
    metrics.observe(CPU_SECONDS, lambda: sum(os.times()[:2]))
    metrics.observe(FILES_MAX, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    secured = metrics.certificates
    metrics.observe(TLS_HANDSHAKES, lambda: [
        ((name, outcome), count) for name, tls in secured.items() for outcome, count in sorted(tls.outcomes.items())])
    metrics.observe(TLS_DAYS_LEFT, lambda: [((name,), tls.days_left()) for name, tls in secured.items()])
    metrics.observe(TLS_REFUSED, lambda: [((name,), int(tls.refusal is not None)) for name, tls in secured.items()])
    metrics.observe(TLS_RELOADS, lambda: [((name,), tls.reloads) for name, tls in secured.items()])
    if os.path.exists("/proc/self/statm"):
        page = resource.getpagesize()
        metrics.observe(RESIDENT_BYTES, lambda: _resident_pages() * page)
        metrics.observe(OPEN_FILES, lambda: len(os.listdir("/proc/self/fd")))


def _resident_pages() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1])
