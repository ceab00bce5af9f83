"""Programs in addition to those of `hapax_sim.clients`: each part is a history that a scene may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hapax_sim.parts.copying import Copying
from hapax_sim.parts.days import Days
from hapax_sim.parts.groups import Groups
from hapax_sim.parts.hostile import Hostile
from hapax_sim.parts.keys import Keys
from hapax_sim.parts.late import Late
from hapax_sim.parts.old import Old
from hapax_sim.parts.part import Part
from hapax_sim.parts.positions import Positions
from hapax_sim.parts.prepared import Prepared
from hapax_sim.parts.refusals import Refusals
from hapax_sim.parts.remade import Remade
from hapax_sim.parts.renewals import Renewals
from hapax_sim.parts.rest import Rest
from hapax_sim.parts.tasks import Tasks
from hapax_sim.parts.weak import Weak

PARTS: Final[Mapping[str, Callable[[], Part]]] = {
    "copying": Copying,
    "days": Days,
    "groups": Groups,
    "hostile": Hostile,
    "keys": Keys,
    "late": Late,
    "old": Old,
    "positions": Positions,
    "prepared": Prepared,
    "refusals": Refusals,
    "remade": Remade,
    "renewals": Renewals,
    "rest": Rest,
    "tasks": Tasks,
    "weak": Weak,
}
"""By the names that a scene and `--part` use."""
