"""Simulations and explorations that look for a mutant without its unit test, by the mutant's name.

`python -m hapax_mutants --machines` runs only these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hapax_mutants.mutant import explore, sim

_KEYS: Final = "--hours 0.03 --scene keys"
_REST: Final = (sim("1-8", "--hours 0.03 --scene rest"),)

_GROUPS: Final = (sim("1-4", "--hours 0.01 --scene groups --faults-every 8"),)
_PREPARED: Final = (sim("998201-998208", "--hours 0.01 --scene prepared"),)
_MEMBERS: Final = (sim("998001-998004", "--hours 0.01 --scene groups"),)

MACHINES: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    ("a leader tells its end from memory",): (sim("5", "--hours 0.16 --scene cut-off"),),
    ("a leader that was replaced says that an offset is out of range",): (
        sim("1006111", "--hours 0.01 --scene groups --faults-every 15"),
    ),
    ("a transaction's timer that fires early is never set again",): (
        sim("1-3", "--hours 0.01 --scene old --only 'client freeze'"),
    ),
    ("acks=1 waits for ever once the last other replica goes",): (
        sim("4-9", "--hours 0.003 --scene weak --only 'slow disk'"),
    ),
    (
        "a marker leaves parked writes of version 1 waiting",
        "a batch under sequences that were used is taken for a retry",
    ): (explore("parked"),),
    ("a position outlives its topic",): (sim("10", "--hours 0.03 --scene remade"),),
    ("a topic deleted while a connection opens costs others their outcome",): (
        sim("1-4", "--hours 0.04 --scene unmade"),
    ),
    ("a partition that has given its only batch up wants no other",): (
        sim("4", "--hours 0.01 --scene remade --faults-every 1 --only 'long absence'"),
    ),
    (
        "a lookup by time ends at a batch that lost its newest record",
        "compaction leaves a batch's greatest timestamp as it was",
    ): (sim("1", _KEYS),),
    ("compressed batches are kept whole",): (sim("1", _KEYS),),
    ("a tombstone's age counts from its client's timestamp",): (sim("3", _KEYS),),
    ("compaction merges segments by size alone",): (sim("1-3", "--hours 0.02 --scene far"),),
    ("acks=0 overtakes what waits for the connection",): (sim("1-4", "--hours 0.02 --scene weak"),),
    ("a folder is believed by the setting of the process that finds it",): (sim("1", "--hours 0.02 --scene alone"),),
    ("a compressed batch gets another sequence",): (sim("1", "--hours 0.01 --scene packed --faults-every 1"),),
    ("who left a leader that died is not remembered",): (sim("941001-941040", "--hours 0.03 --scene durability"),),
    ("classic: a transaction of a former generation commits positions",): _GROUPS,
    ("a partition is free as soon as its member was told to give it up",): _GROUPS,
    ("a heartbeat that lists nothing confirms a revocation",): _GROUPS,
    ("an aborted transaction commits its offsets",): _MEMBERS,
    ("a consumer reads an offset that is about to change",): _MEMBERS,
    ("what was given and not yet taken counts as given up",): (sim("998010", "--hours 0.01 --scene groups"),),
    ("classic: what a static member was to give up is forgotten when it starts again",): (
        sim("998021", "--hours 0.01 --scene groups"),
    ),
    ("InitProducerId forgets to keep",): _PREPARED,
    ("an abort overtakes the registration of its partitions",): (explore("timers"),),
    ("an answer leaves before its record is durable",): (explore("elections"),),
    ("followers that lag count for nothing",): (explore("elections"),),
    ("followers append without replaying",): (explore("elections"),),
    ("a pending addition does not count",): (explore("elections-in-sync"),),
    ("a cut log keeps the producers' state of what was cut",): (explore("elections-twice"),),
    ("completion does not wait for every marker",): (explore("two-partitions"),),
    ("a transaction that is kept is aborted",): (explore("two-phase"),),
    ("a zombie ends the transaction that its successor has kept",): (explore("two-phase"),),
    ("a refused marker counts as stored",): (explore("two-partitions"),),
    ("a resumed reset of a group is planned again",): _REST,
    ("a deletion under If-Match compares nothing",): _REST,
    ("REST deletes whatever has the name",): _REST,
}
"""Names of `MUTANTS` that are applied together -> checks, in this order until one finds the bug."""

UNSEEN: Final[Mapping[str, str]] = {
    "a leader that was replaced says where logs diverge":
        "the simulated clients send no last fetched epoch (KIP-595), and are not told",
    "a leader that was replaced says where an epoch ends":
        "the simulated clients do not ask: only clients that check their position against epochs (KIP-320) do",
    "a new leader forgets which coordinators were replaced":
        "a coordinator's word is confirmed by its shard's log after the question came (rule 23). A marker of a later "
        "shard epoch in the partition's log was written behind that epoch's fence, so a coordinator replaced by then "
        "cannot answer the new leader at all. What a leader knows of shard epochs is a second line behind that.",
    "a parked write of an ended transaction enters the next":
        "a marker ends what is parked first; with that line of defence gone, `explore parked` finds the bug",
    "a file counts as synced by its size":
        "a cut and an append must come to one size while one sync runs, which no history drew",
    "a leader that resigned appends what it was looking at":
        "six histories of `packed` with a fault a second showed nothing: a leadership must end and the same node lead "
        "again while one batch is looked at",
    "a preferred election confirms who came back without data":
        "a member without its data leaves the in-sync set before the election, so no member is left to confirm; with "
        "the next bug beside it, ElectLeaders must come between a broker's registration and the controller's look at "
        "it, and the leader must die before that broker has caught up",
    "a preferred election keeps who came back without data":
        "it stays under its former registration, which is not confirmed; see the bug before",
    "a path is taken for the folder that it named":
        "it is in the real disk, in whose place the simulator has its own",
    "a segment that a crash closed has no last time":
        "30 histories of `keys` under kills and power cuts alone showed nothing: the crash must come between a roll "
        "and the end of its checkpoint, and a lookup by time must then end in that very segment",
}
"""Mutants that lose, double, tear, reorder or hide data and are not found in this way -> the reason."""
