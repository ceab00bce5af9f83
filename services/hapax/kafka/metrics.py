"""Metrics of the Kafka listener of brokers and coordinators."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter, gauge, histogram

REQUESTS: Final = counter(
    "hapax_requests_total", "Kafka requests.", ["api"],
    kafka="kafka.network:type=RequestMetrics,name=RequestsPerSec,request=*")
REQUEST_SECONDS: Final = histogram(
    "hapax_request_seconds",
    "Time from the arrival of a request to the departure of its answer, including waits for replicas or data.", ["api"],
    kafka="kafka.network:type=RequestMetrics,name=TotalTimeMs,request=*")
REQUEST_ERRORS: Final = counter(
    "hapax_request_errors_total", "Error codes in answers: one for each partition or other item that was refused.",
    ["api", "code"], kafka="kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=*,error=*")
REQUESTS_REFUSED: Final = counter(
    "hapax_requests_refused_total", "Requests that were malformed, unknown or failed, and closed their connection.")
CONNECTIONS: Final = gauge(
    "hapax_connections", "Open client connections.",
    kafka="kafka.server:type=socket-server-metrics,name=connection-count")
REQUEST_BYTES_IN_FLIGHT: Final = gauge(
    "hapax_request_bytes_in_flight", "Bytes of requests that have no answer yet.", unit="bytes")
LOGINS: Final = counter(
    "hapax_sasl_logins_total",
    "Logins: succeeded, renewed on an open connection, failed, timed out, or given up because there were too many.",
    ["listener", "mechanism", "outcome"],
    kafka="kafka.server:type=socket-server-metrics,name=successful-authentication-total")
LOGGING_IN: Final = gauge(
    "hapax_sasl_logging_in", "Open connections whose clients have not logged in.", ["listener"])
KEY_SET_READS: Final = counter(
    "hapax_sasl_key_set_reads_total",
    "How often the token issuer's keys were read. When a read fails, those that are known stay.",
    ["listener", "outcome"])
QUOTA_ENTITIES: Final = gauge("hapax_quota_entities", "Users, client ids and addresses that have quotas.")
QUOTA_METERS: Final = gauge("hapax_quota_meters", "Clients that are metered for a quota now, by key each.")
QUOTA_METERS_GIVEN_UP: Final = counter(
    "hapax_quota_meters_given_up_total", "Meters that were in use and had to make room (`quota.meters.max`).")
THROTTLED: Final = counter(
    "hapax_throttled_total", "Requests, and connections, of clients that had exceeded the quota.", ["quota"])
THROTTLED_SECONDS: Final = counter(
    "hapax_throttled_seconds_total", "How long those clients were told to wait.", ["quota"], unit="seconds",
    kafka="kafka.server:type={Produce|Fetch|Request|ControllerMutation},user=*,client-id=*:throttle-time")
