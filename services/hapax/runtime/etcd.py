"""The metadata store port on etcd.

aetcd supplies the message classes; the calls are made on grpcio here, because aetcd's own client knows one endpoint
only, and its watcher drops the end of a stream without an error (a watch that ends silently is a node that serves
old metadata for ever). Differences from the wire that callers rely on:

* A write is sent once. If its outcome is unknown, `MetadataUnavailable` is raised and the caller reads first. Reads,
  and writes that certainly never left this process, are retried on the next endpoint until the time-out.
* Calls go to a member that has answered recently. A member whose machine is gone does not close its connections, and
  the outcome of a write sent to it stays unknown.
* A call without an answer for a second checks that its member is alive. It ends if the member is not, or if the members
  have elected a new leader: requests on their way to the old leader are lost without an error.
* All members are connected before they are needed: a name server may fail together with a machine, and a DNS time-out
  is longer than a lease.
* A member that cannot be reached gets a new channel. A channel that could not resolve a name waits up to two minutes
  before it asks again, and a pod that comes back has another IP address.
* A watch asks for a member that has a leader (`hasleader`), so that a member cut off from its quorum ends the watch
  instead of staying silent. Pings find a peer that is frozen or gone. A watch of a revision in the store's future ends
  at once: etcd would wait for that revision, and a restored store would hide its events until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from aetcd.rpc import kv_pb2, rpc_pb2

from hapax.runtime import supervision, telemetry
from hapax.runtime.etcd_login import Login, LoginRefused, Metadata, NoLogin
from hapax.runtime.ports import (
    Compare,
    Delete,
    KeyValue,
    MetadataCompacted,
    MetadataLeaseGone,
    MetadataUnavailable,
    Put,
    TxnResult,
    WatchEvent,
)

if TYPE_CHECKING:
    from hapax.runtime.tls import TlsCertificates

log = telemetry.logger("etcd")

MAX_TXN_OPERATIONS: Final = 128
"""etcd's own default (--max-txn-ops)."""

_PAGE: Final = 5_000
"""Keys per Range call of `list`: a response stays far below gRPC's and etcd's size limits."""
_LISTINGS: Final = 3
"""Attempts at a listing of several pages. A compaction of the history between two pages ends an attempt."""
_PAUSE_S: Final = 0.05
_ASK_AFTER_S: Final = 1.0
_ANSWER_S: Final = 1.0
"""A call or watch that receives nothing for `_ASK_AFTER_S` checks that its member is alive and waits `_ANSWER_S` for
the answer. A member whose machine is frozen or unreachable does not close its connections, and etcd limits how often
gRPC may ping. A member that is alone, or alive but slow, has the whole time-out."""
_FRESH_S: Final = 1.0
_PREFERRED_S: Final = 0.2
"""A member that has not answered for `_FRESH_S` is checked before a call is sent to it. If that takes longer than
`_PREFERRED_S`, all members are checked, and the first that answers gets the call."""
_KEEP_S: Final = 1.0
"""A channel that is not connected is replaced after a failed call once it is this old."""
SIGN_OF_LIFE_KEY: Final = b"\0"
"""No key has this name. That a user may not read it is an answer too."""
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # etcd closes connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.client_idle_timeout_ms", 2**31 - 1),  # never: the connections to members that are not asked are kept
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)
_EOF: Final = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
_READY: Final = grpc.ChannelConnectivity.READY
_HAS_LEADER: Final = (("hasleader", "true"),)
_NEVER_SENT: Final = (
    "failed to connect", "connections to all backends failing", "DNS resolution failed",
    "etcdserver: rpc not supported for learner")
"""Error texts for a call that cannot have taken effect: gRPC has not sent it, or a member without a vote refused it."""
_COMPARE_TARGETS: Final = {
    "mod_revision": rpc_pb2.Compare.MOD,
    "create_revision": rpc_pb2.Compare.CREATE,
    "value": rpc_pb2.Compare.VALUE,
}


class _Lost(Exception):
    """This call will get no answer; it may have taken effect."""


class _Endpoint:
    """One etcd member and the calls used of it."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None, term: int = 0) -> None:
        self.address = address
        self.since = asyncio.get_running_loop().time()
        self.term = term
        """The newest raft term that an answer to a call has shown."""
        self.answered_at = float("-inf")
        """Time of its last answer, by the loop's clock."""
        self.channel = (
            grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS) if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=_CHANNEL_OPTIONS))
        self.range = self._unary("/etcdserverpb.KV/Range", rpc_pb2.RangeRequest, rpc_pb2.RangeResponse)
        self.txn = self._unary("/etcdserverpb.KV/Txn", rpc_pb2.TxnRequest, rpc_pb2.TxnResponse)
        self.grant = self._unary(
            "/etcdserverpb.Lease/LeaseGrant", rpc_pb2.LeaseGrantRequest, rpc_pb2.LeaseGrantResponse)
        self.revoke = self._unary(
            "/etcdserverpb.Lease/LeaseRevoke", rpc_pb2.LeaseRevokeRequest, rpc_pb2.LeaseRevokeResponse)
        self.keep_alive: Any = self.channel.stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=rpc_pb2.LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=rpc_pb2.LeaseKeepAliveResponse.FromString,
        )
        self.watch: Any = self.channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=rpc_pb2.WatchRequest.SerializeToString,
            response_deserializer=rpc_pb2.WatchResponse.FromString,
        )

    def answered(self, response: Any | None) -> None:
        if response is not None:
            self.term = max(self.term, response.header.raft_term)
        self.answered_at = asyncio.get_running_loop().time()

    def _unary(self, method: str, request: Any, response: Any) -> Any:
        return self.channel.unary_unary(
            method, request_serializer=request.SerializeToString, response_deserializer=response.FromString)


class EtcdStore:
    """`MetadataStore` on one etcd cluster. `endpoints` are `host:port`; `timeout_s` bounds every call but `watch`.
    `certificates`: with them the calls go by TLS, and their common name is the user of etcd, unless `login` says who
    it is. `sign_of_life_key`: one that this user may read and that has no value."""

    def __init__(
        self, endpoints: Sequence[str], timeout_s: float = 5.0, certificates: TlsCertificates | None = None,
        login: Login | None = None, sign_of_life_key: bytes = SIGN_OF_LIFE_KEY,
    ) -> None:
        if not endpoints:
            raise ValueError("no etcd endpoint")
        self._addresses = list(endpoints)
        self._timeout_s = timeout_s
        self._certificates = certificates
        self._credentials = _credentials(certificates)
        self._login = login or NoLogin()
        self._sign_of_life_request = rpc_pb2.RangeRequest(key=sign_of_life_key, serializable=True, count_only=True)
        self._endpoints: list[_Endpoint | None] = [None] * len(endpoints)
        self._current = 0

    async def get(self, key: str) -> KeyValue | None:
        response = await self._read(rpc_pb2.RangeRequest(key=key.encode()))
        return _key_value(response.kvs[0]) if response.kvs else None

    async def _listed(self, prefix: str) -> tuple[list[KeyValue], int]:
        """Raises MetadataCompacted where the revision of the first page is gone before the last one."""
        key, end = prefix.encode(), _range_end(prefix)
        kvs: list[KeyValue] = []
        revision = 0
        while True:
            # The first page fixes the revision, so that all pages together are one state of the store.
            response = await self._read(
                rpc_pb2.RangeRequest(key=key, range_end=end, limit=_PAGE, revision=revision))
            kvs.extend(_key_value(kv) for kv in response.kvs)
            revision = revision or response.header.revision
            if not response.more:
                return kvs, revision
            key = response.kvs[-1].key + b"\0"

    async def list(self, prefix: str) -> tuple[list[KeyValue], int]:
        for _ in range(_LISTINGS):
            try:
                return await self._listed(prefix)
            except MetadataCompacted as error:
                log.info("the history was compacted during a listing, which starts again", prefix=prefix, error=error)
        raise MetadataUnavailable(f"list of {prefix}: compacted before its last page, {_LISTINGS} times")

    async def txn(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TxnResult:
        if len(compares) > MAX_TXN_OPERATIONS or len(writes) > MAX_TXN_OPERATIONS:
            raise ValueError(f"a transaction holds at most {MAX_TXN_OPERATIONS} operations")
        request = rpc_pb2.TxnRequest(
            compare=[_compare(compare) for compare in compares], success=[_operation(write) for write in writes])
        response = await self._call("txn", lambda endpoint: endpoint.txn, request, repeatable=False)
        return TxnResult(response.succeeded, response.header.revision)

    async def grant_lease(self, ttl_s: float) -> int:
        # A repeated grant leaves an unused lease, which expires.
        request = rpc_pb2.LeaseGrantRequest(TTL=max(1, round(ttl_s + 0.499)))
        response = await self._call("grant_lease", lambda endpoint: endpoint.grant, request, repeatable=True)
        return int(response.ID)

    async def keep_alive(self, lease: int) -> float:
        request = rpc_pb2.LeaseKeepAliveRequest(ID=lease)

        async def renew(endpoint: _Endpoint, timeout: float) -> Any:
            call = endpoint.keep_alive(timeout=timeout, metadata=_HAS_LEADER + await self._carried(endpoint, timeout))
            try:
                await call.write(request)
                response = await call.read()
            finally:
                call.cancel()
            if response is _EOF:
                raise MetadataUnavailable("keep-alive stream ended without an answer")
            return response

        response = await self._until_answered("keep_alive", renew, repeatable=True)
        return max(0.0, float(response.TTL))

    async def revoke_lease(self, lease: int) -> None:
        try:
            await self._call(
                "revoke_lease", lambda endpoint: endpoint.revoke, rpc_pb2.LeaseRevokeRequest(ID=lease), repeatable=True)
        except MetadataLeaseGone:
            return

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        create = rpc_pb2.WatchRequest(create_request=rpc_pb2.WatchCreateRequest(
            key=prefix.encode(), range_end=_range_end(prefix), start_revision=from_revision))
        endpoint = await self._living_endpoint()
        try:
            call = endpoint.watch(metadata=_HAS_LEADER + await self._carried(endpoint, self._timeout_s))
        except LoginRefused as error:
            raise MetadataUnavailable(f"watch of {prefix}: {error}") from error
        try:
            async with asyncio.timeout(self._timeout_s):
                await call.write(create)
                response = await call.read()
            if response is not _EOF and not response.canceled and from_revision > response.header.revision + 1:
                raise MetadataUnavailable(
                    f"watch of {prefix} from revision {from_revision}: the store is at {response.header.revision}")
            while response is not _EOF:
                if response.compact_revision:
                    raise MetadataCompacted(
                        f"watch of {prefix} from revision {from_revision}: compacted at {response.compact_revision}")
                if response.canceled:
                    self._login.watch_refused(response.cancel_reason)
                    raise MetadataUnavailable(f"watch of {prefix} was cancelled: {response.cancel_reason}")
                if response.events:
                    yield [_watch_event(event) for event in response.events]
                response = await self._heard(endpoint, call)
            raise MetadataUnavailable(f"watch of {prefix}: the stream ended ({await call.details()})")
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._login.refused(error)
            self._turn_from(endpoint)
            raise MetadataUnavailable(f"watch of {prefix}: {_text(error)}") from error
        except TimeoutError as error:
            self._turn_from(endpoint)
            raise MetadataUnavailable(f"watch of {prefix}: not created in {self._timeout_s} s") from error
        except asyncio.CancelledError as error:
            if supervision.is_asked_to_end():
                raise
            raise _cancelled(f"watch of {prefix}") from error
        finally:
            call.cancel()

    async def _heard(self, endpoint: _Endpoint, call: Any) -> Any:
        """The next response of a watch. Raises AioRpcError where the member is gone and another one may be there."""
        if len(self._addresses) == 1:
            return await call.read()
        reading = supervision.judged(call.read())
        try:
            while not (await asyncio.wait([reading], timeout=_ASK_AFTER_S))[0]:
                await self._sign_of_life(endpoint)
            response = reading.result()
        finally:
            reading.cancel()
        if response is not _EOF:
            endpoint.answered(response)
        return response

    async def _sign_of_life(self, endpoint: _Endpoint) -> None:
        """Raises AioRpcError where there is none."""
        await self._asked(endpoint, ())

    async def _asked(self, endpoint: _Endpoint, more: Metadata) -> None:
        try:
            endpoint.answered(await endpoint.range(
                self._sign_of_life_request, timeout=_ANSWER_S, metadata=more + self._login.present()))
        except grpc.aio.AioRpcError as error:
            if not self._login.refused(error) and error.code() is not grpc.StatusCode.PERMISSION_DENIED:
                raise
            endpoint.answered(None)

    async def _carried(self, endpoint: _Endpoint, timeout_s: float) -> Metadata:
        return await self._login.metadata(endpoint.channel, timeout_s)

    async def close(self) -> None:
        for endpoint in self._endpoints:
            if endpoint is not None:
                await endpoint.channel.close(None)
        self._endpoints = [None] * len(self._addresses)

    # --- calls

    def _endpoint(self, further: int = 0) -> _Endpoint:
        return self._at((self._current + further) % len(self._addresses))

    def _at(self, index: int) -> _Endpoint:
        endpoint = self._endpoints[index]
        if endpoint is None or endpoint.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN:
            endpoint = self._endpoints[index] = _Endpoint(self._addresses[index], self._credentials)
        return endpoint

    async def _living_endpoint(self) -> _Endpoint:
        """The member that calls go to; where it has been quiet, the first one that gives a sign of life. Where none
        does, the call will tell."""
        for index in range(len(self._addresses)):
            self._at(index).channel.get_state(try_to_connect=True)
        endpoint, loop = self._endpoint(), asyncio.get_running_loop()
        if len(self._addresses) == 1 or loop.time() - endpoint.answered_at < _FRESH_S:
            return endpoint
        preferred = supervision.once(self._lives(endpoint), "etcd-lives")
        asked = {preferred: endpoint}
        try:
            await asyncio.wait(asked, timeout=_PREFERRED_S)
            if not preferred.done() or not preferred.result():
                others = [self._endpoint(further) for further in range(len(self._addresses))]
                asked |= {
                    supervision.once(self._lives(other), "etcd-lives"): other
                    for other in others if other is not endpoint}
            waiting = set(asked)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for living in (asked[each] for each in done if each.result()):
                    if living in self._endpoints:  # not closed meanwhile
                        self._current = self._endpoints.index(living)
                    return living
            return endpoint
        finally:
            for each in asked:
                each.cancel()

    async def _lives(self, endpoint: _Endpoint) -> bool:
        """Whether the member answers and knows of a leader. One that is cut off from the others only answers."""
        try:
            await self._asked(endpoint, _HAS_LEADER)
        except grpc.aio.AioRpcError:
            self._renew(endpoint)
            return False
        except asyncio.CancelledError:
            if supervision.is_asked_to_end():
                raise
            return False
        return True

    def _turn_from(self, endpoint: _Endpoint) -> None:
        if self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._addresses)
        self._renew(endpoint)

    def _renew(self, endpoint: _Endpoint) -> None:
        """After a failed call: replaces a channel that has no connection. Calls in progress keep the former one, which
        closes when its object is gone."""
        too_old = asyncio.get_running_loop().time() - endpoint.since >= _KEEP_S
        if endpoint in self._endpoints and too_old and endpoint.channel.get_state() is not _READY:
            self._endpoints[self._endpoints.index(endpoint)] = self._successor(endpoint)

    def _successor(self, endpoint: _Endpoint) -> _Endpoint:
        return _Endpoint(endpoint.address, self._credentials, endpoint.term)

    async def reload_certificates(self) -> None:
        """Takes over new files of certificates, if they pass the checks. Later calls use new connections; calls and
        watches in progress keep theirs."""
        if self._certificates is None:
            return
        former = self._certificates.reloads
        await self._certificates.reload_aside()
        if self._certificates.reloads != former:
            self._credentials = _credentials(self._certificates)
            self._endpoints = [None if each is None else self._successor(each) for each in self._endpoints]

    async def _read(self, request: Any) -> Any:
        return await self._call("range", lambda endpoint: endpoint.range, request, repeatable=True)

    async def _call(
        self, name: str, method: Callable[[_Endpoint], Any], request: Any, *, repeatable: bool
    ) -> Any:
        async def once(endpoint: _Endpoint, timeout: float) -> Any:
            return await method(endpoint)(request, timeout=timeout, metadata=await self._carried(endpoint, timeout))

        return await self._until_answered(name, once, repeatable=repeatable)

    async def _until_answered(
        self, name: str, once: Callable[[_Endpoint, float], Coroutine[Any, Any, Any]], *, repeatable: bool
    ) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            endpoint = await self._living_endpoint()
            left = max(deadline - loop.time(), 0.1)
            try:
                # A frozen member must not use up the time that another one could answer in.
                share = left if len(self._addresses) == 1 or not repeatable else max(left / 2, 0.1)
                return await self._answer(endpoint, once(endpoint, share))
            except (grpc.aio.AioRpcError, LoginRefused, asyncio.InvalidStateError, _Lost) as error:
                unseen = self._login.refused(error) or isinstance(error, LoginRefused) or _never_sent(error)
                self._turn_from(endpoint)
                if not unseen:
                    _raise_final(name, error)
                if not repeatable and not unseen:
                    raise MetadataUnavailable(f"{name}: {_text(error)}") from error
                if loop.time() + _PAUSE_S >= deadline:
                    raise MetadataUnavailable(
                        f"{name}: no answer in {self._timeout_s} s, last {_text(error)}") from error
            except asyncio.CancelledError as error:
                if supervision.is_asked_to_end():
                    raise
                raise _cancelled(name) from error
            await asyncio.sleep(_PAUSE_S)

    async def _answer(self, endpoint: _Endpoint, call: Coroutine[Any, Any, Any]) -> Any:
        """Raises AioRpcError as the call does, _Lost where it waits for what cannot come."""
        if len(self._addresses) == 1:
            return await call
        term = endpoint.term
        answering = supervision.judged(call)
        try:
            while not (await asyncio.wait([answering], timeout=_ASK_AFTER_S))[0]:
                try:
                    await self._sign_of_life(endpoint)
                except grpc.aio.AioRpcError as error:
                    # Not this error itself: of the call it says nothing, above all not that it was never sent.
                    raise _Lost(f"no sign of life from {endpoint.address}: {_text(error)}") from error
                if term and endpoint.term > term and not answering.done():
                    raise _Lost(f"{endpoint.address} follows a new leader, the former one was to answer")
            response = answering.result()
        finally:
            answering.cancel()
        endpoint.answered(response)
        return response


def _credentials(certificates: TlsCertificates | None) -> grpc.ChannelCredentials | None:
    if certificates is None:
        return None
    from hapax.runtime.grpc_tls import channel_credentials

    return channel_credentials(certificates)


def _text(error: Exception) -> str:
    return f"{error.code().name} {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)


def _cancelled(what: str) -> MetadataUnavailable:
    """gRPC says of a call that ended with its channel that it was cancelled, as if the task was."""
    return MetadataUnavailable(f"{what}: its call was cancelled")


def _never_sent(error: Exception) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and (error.details() or "").startswith(_NEVER_SENT)


def _raise_final(name: str, error: Exception) -> None:
    """Raises for an answer that no repetition changes; returns for one that says 'not now'."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
        raise MetadataLeaseGone(f"{name}: {details}") from error
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        raise MetadataCompacted(f"{name}: {details}") from error
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED):
        raise ValueError(f"etcd refuses {name}: {details}") from error


def _range_end(prefix: str) -> bytes:
    """The first key after all that begin with the prefix. Prefixes are ASCII, so no byte overflows."""
    key = prefix.encode()
    return key[:-1] + bytes([key[-1] + 1])


def _compare(compare: Compare) -> Any:
    message = rpc_pb2.Compare(
        result=rpc_pb2.Compare.EQUAL, target=_COMPARE_TARGETS[compare.target], key=compare.key.encode())
    setattr(message, compare.target, compare.value)
    return message


def _operation(write: Put | Delete) -> Any:
    if isinstance(write, Put):
        return rpc_pb2.RequestOp(
            request_put=rpc_pb2.PutRequest(key=write.key.encode(), value=write.value, lease=write.lease))
    return rpc_pb2.RequestOp(request_delete_range=rpc_pb2.DeleteRangeRequest(key=write.key.encode()))


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def _watch_event(event: Any) -> WatchEvent:
    deleted = event.type == kv_pb2.Event.DELETE
    return WatchEvent(event.kv.key.decode(), None if deleted else _key_value(event.kv), event.kv.mod_revision)
