"""What has an owner: it changes what is its own alone, and what others do to that does not take it away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from hapax.core.access.bindings import Binding, Filter
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.errors import ErrorCode
from hapax.core.quota.entities import Entity, entity_of
from hapax.core.sasl.scram_keys import ScramMechanism, credential_of
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import Changes, ClusterView
from unit.control_world import ControlWorld, run
from unit.kafka.test_node_apis import AnsweringNode, cluster

SHA_256 = ScramMechanism.SCRAM_SHA_256
OWNER, OTHER = "user/team/app", "user/team/other"
ALICE = Principal("User:alice")
QUOTAS: Entity = entity_of({"user": "alice"})


def read(name: str) -> Binding:
    return Binding(
        ResourceType.TOPIC, name, Pattern.LITERAL, ALICE, "*", Operation.READ, Permission.ALLOW)


def everything_of(principal: str) -> Filter:
    return Filter(ResourceType.ANY, None, Pattern.ANY, principal, None, Operation.ANY, Permission.ANY)


def password(salt: bytes, *, remove: bool = False) -> pb.ScramChange:
    if remove:
        return pb.ScramChange(user="alice", mechanism=SHA_256, remove=True)
    made = credential_of(SHA_256, salt, bytes(32), 4096)
    return pb.ScramChange(
        user="alice", mechanism=SHA_256, salt=salt, stored_key=made.stored_key, server_key=made.server_key,
        iterations=4096)


def administered(scenario: Callable[[ClusterView, Administration], Awaitable[None]]) -> None:
    async def prepared(world: ControlWorld) -> None:
        node: AnsweringNode = await cluster(world)
        network = world.ports(node._process).network
        await world.inside(node._process, scenario(node.view, Administration(node.view, network)))

    run(prepared)


def test_bindings_of_others_stay() -> None:
    async def scenario(view: ClusterView, administration: Administration) -> None:
        await administration.alter_acls(5_000, add=[read("by-hand"), read("both")])
        await administration.alter_acls(5_000, add=[read("both"), read("owned")], owner=OWNER)
        await administration.alter_acls(5_000, add=[read("other")], owner=OTHER)
        assert {each.binding.name: each.owner for each in view.access.stored.values()} == {
            "by-hand": "", "both": "", "owned": OWNER, "other": OTHER}
        answer = await administration.alter_acls(5_000, remove=[everything_of(ALICE)], owner=OWNER)
        assert [each.acl.name for each in answer.removed[0].acls] == ["owned"]
        assert {each.binding.name for each in view.access.stored.values()} == {"by-hand", "both", "other"}
        await administration.alter_acls(5_000, remove=[everything_of(ALICE)])
        assert not view.access.stored, "who names no owner removes all"

    administered(scenario)


def test_a_password_of_another_owner_is_neither_replaced_nor_removed() -> None:
    async def scenario(view: ClusterView, administration: Administration) -> None:
        async def alter(change: pb.ScramChange, owner: str) -> int:
            (result,) = await administration.alter_scram_credentials([change], 5_000, owner)
            return int(result.error)

        def held() -> tuple[bytes, str] | None:
            found = view.scram.stored(SHA_256, "alice")
            return None if found is None else (found.credential.salt, found.owner)

        refused = ErrorCode.POLICY_VIOLATION
        assert await alter(password(b"by hand"), "") == 0
        assert await alter(password(b"owned"), OWNER) == refused
        assert await alter(password(b"", remove=True), OWNER) == refused
        assert held() == (b"by hand", "")
        assert view.scram.owned() == []
        assert await alter(password(b"", remove=True), "") == 0
        assert await alter(password(b"owned"), OWNER) == 0
        assert await alter(password(b"other"), OTHER) == refused
        assert held() == (b"owned", OWNER)
        assert await alter(password(b"by hand"), "") == 0
        assert held() == (b"by hand", OWNER), "its owner still knows it, and puts it right"
        assert view.scram.owned() == [(SHA_256, "alice", OWNER)]
        assert await alter(password(b"again"), OWNER) == 0
        assert await alter(password(b"", remove=True), OWNER) == 0
        assert held() is None

    administered(scenario)


def test_quotas_of_another_owner_are_not_changed() -> None:
    async def scenario(view: ClusterView, administration: Administration) -> None:
        async def alter(rate: float | None, owner: str) -> int:
            (result,) = await administration.alter_quotas(
                [(QUOTAS, {"producer_byte_rate": rate})], 5_000, owner=owner)
            return int(result.error)

        def held() -> list[tuple[float, str]]:
            return [(each.record.quotas["producer_byte_rate"], each.record.owner)
                    for each in view.quotas.stored.values()]

        assert await alter(1.0, "") == 0
        assert await alter(2.0, OWNER) == await alter(None, OWNER) == ErrorCode.POLICY_VIOLATION
        assert held() == [(1.0, "")]
        assert await alter(None, "") == 0
        assert await alter(2.0, OWNER) == 0
        assert await alter(3.0, "") == 0
        assert held() == [(3.0, OWNER)]
        assert await alter(4.0, OTHER) == ErrorCode.POLICY_VIOLATION
        assert await alter(None, OWNER) == 0
        assert held() == []

    administered(scenario)


def test_a_view_says_whose_rights_passwords_and_quotas_changed() -> None:
    async def scenario(view: ClusterView, administration: Administration) -> None:
        told: list[str] = []

        def changed(changes: Changes) -> None:
            told.extend(changes.users)

        view.on_change(changed)

        def since() -> set[str]:
            seen = set(told)
            told.clear()
            return seen

        await administration.alter_acls(5_000, add=[read("t")])
        assert since() == {"alice"}
        await administration.alter_acls(5_000, remove=[everything_of(ALICE)])
        assert since() == {"alice"}
        await administration.alter_scram_credentials([password(b"salt")], 5_000)
        assert since() == {"alice"}
        await administration.alter_scram_credentials([password(b"", remove=True)], 5_000)
        assert since() == {"alice"}
        for rate in (1.0, None):
            await administration.alter_quotas([(QUOTAS, {"producer_byte_rate": rate})], 5_000)
            assert since() == {"alice"}
        await administration.alter_quotas([(entity_of({"client-id": "x"}), {"producer_byte_rate": 1.0})], 5_000)
        assert since() == set()

    administered(scenario)
