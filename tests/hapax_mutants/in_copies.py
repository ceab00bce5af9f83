"""Bugs in `hapax copy`: whole transactions, positions, and what is read of a source that is not sound."""

from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import Mutant, sim, unit

_CUT: Final = unit("core/copy/test_cut.py")
_POSITION: Final = unit("core/copy/test_position.py")
_TRANSLATE: Final = unit("core/copy/test_translate.py")
_BATCHES: Final = unit("copy/test_batches.py")
_GROUPS: Final = unit("copy/test_groups.py")
_READER: Final = unit("copy/test_reader.py")
_SHARES: Final = unit("copy/test_shares.py")
_SAVED: Final = unit("copy/test_saved.py")
_TOPICS: Final = unit("copy/test_topics.py")
_COPYING: Final = sim("1009201-1009204", "--hours 0.004 --scene copying --faults-every 2")

MUTANTS: Final = (
    Mutant(
        "a copy takes a transaction whose marker was not read", "a transaction is whole", "core/copy/cut.py",
        "        left_out = [group for group in groups if any(part.open for part in group)]\n",
        "        left_out: list[list[Part]] = []\n",
        (_CUT,),
    ),
    Mutant(
        "a copy takes a transaction of which another partition may hold more", "a transaction is whole",
        "core/copy/cut.py",
        "        if len(lanes) > 1:\n",
        "        if len(lanes) > len(limits):\n",
        (_CUT,),
    ),
    Mutant(
        "what a copy leaves out takes nothing with it", "a transaction is whole", "core/copy/cut.py",
        "                waiting.append(whole[id(others.pop())])\n",
        "                others.pop()\n",
        (_CUT,),
    ),
    Mutant(
        "a copy trusts an end that was seen before the marker", "a transaction is whole", "core/copy/cut.py",
        "lane.ended or lane.current >= tick or any(",
        "lane.ended or lane.current >= 0 or any(",
        (_CUT,),
    ),
    Mutant(
        "a copy waits for the marker of an aborted transaction's partners", "copies go on", "core/copy/cut.py",
        "            if not each.aborted and not each.split and each.last",
        "            if not each.split and each.last",
        (_CUT,),
    ),
    Mutant(
        "a marker of the next epoch ends no transaction of a copy", "copies go on", "core/copy/cut.py",
        "        ended = self._open.pop(piece.writer[0], None)\n",
        "        ended = self._open.get(piece.writer[0])\n"
        "        if ended is not None and ended.writer == piece.writer:\n"
        "            del self._open[piece.writer[0]]\n"
        "        else:\n"
        "            ended = None\n",
        (_CUT,),
    ),
    Mutant(
        "a copy goes on in a topic that was made again", "a name is taken for the thing it named",
        "core/copy/position.py",
        "    if position.topic_id and source.topic_id and position.topic_id != source.topic_id:\n",
        "    if position.topic_id and source.topic_id and not position.topic_id:\n",
        (_POSITION,),
    ),
    Mutant(
        "a copy does not notice that its source was truncated and written again", "nothing half done",
        "core/copy/position.py",
        "    if position.epoch != NO_EPOCH and 0 <= source.epoch_end < position.offset:\n",
        "    if position.epoch != NO_EPOCH and 0 <= source.epoch_end < 0:\n",
        (_POSITION,),
    ),
    Mutant(
        "a copy passes over records that its source removed", "nothing is lost unnoticed", "core/copy/position.py",
        "    if position.offset < source.first:\n",
        "    if position.offset < 0:\n",
        (_POSITION,),
    ),
    Mutant(
        "a group of a copy continues behind a marker's successor", "groups continue with the same record",
        "core/copy/translate.py",
        "            return self._targets[found + 1]\n",
        "            return self._targets[found + 1] + 1\n",
        (_TRANSLATE,),
    ),
    Mutant(
        "a copy drops the sound batches before a damaged one", "damage stops at its place", "copy/batches.py",
        "            if isinstance(held, Damage):\n                return found, following, held\n",
        "            if isinstance(held, Damage):\n                return [], start, held\n",
        (_BATCHES,),
    ),
    Mutant(
        "a copy holds records of aborted transactions", "aborted records stay hidden", "copy/batches.py",
        "        is_aborted = header.is_transactional and header.producer_id in dropping\n",
        "        is_aborted = False\n",
        (_BATCHES,),
    ),
    Mutant(
        "a copy doubles the beginning of a batch", "each record once", "copy/batches.py",
        "        header.base_offset >= start\n        and not",
        "        header.base_offset >= 0\n        and not",
        (_BATCHES,),
    ),
    Mutant(
        "a copy begins to read its partitions one after another", "a transaction is whole", "copy/shares.py",
        "                    start.begin()\n",
        "                    start.begin()\n                    await asyncio.sleep(0.2)\n",
        (_SHARES, _COPYING),
    ),
    Mutant(
        "a copy continues where it was before another process had the partition", "each record once", "copy/shares.py",
        "        if any(self._tenures[share] != tenure for share, tenure in tenures.items()):\n",
        "        if False:\n",
        (_SHARES,),
    ),
    Mutant(
        "a leader that does not answer holds all partitions of a copy", "copies go on", "copy/shares.py",
        "asyncio.timeout(_LOOK_UP_S)",
        "asyncio.timeout(None)",
        (_SHARES,),
    ),
    Mutant(
        "a copy believes the first high watermark of a new leader", "a transaction is whole", "copy/reader.py",
        "sent if partition in sure else None",
        "sent",
        (_READER,),
    ),
    Mutant(
        "what one leader knows of a partition's end counts for the next one", "a transaction is whole",
        "copy/reader.py",
        "if asked[each].sure_of != epoch}",
        "if asked[each].sure_of is None}",
        (_READER,),
    ),
    Mutant(
        "a leader that does not tell its end is asked again by each fetch", "copies go on", "copy/reader.py",
        "        if new and node_id not in self._end_questions:\n",
        "        if new:\n",
        (_READER,),
    ),
    Mutant(
        "an end that a leader does not tell hides those of its other partitions", "copies go on", "copy/reader.py",
        "            if len(epochs) == 1 or error.code",
        "            if epochs or error.code",
        (_READER,),
    ),
    Mutant(
        "a copy divides a transaction and does not say so", "a transaction is whole", "core/copy/cut.py",
        "                lane.passed_over = True\n",
        "",
        (_CUT,),
    ),
    Mutant(
        "a copy by key goes on though the topic with its records is another one",
        "a name is taken for the thing it named", "core/copy/position.py",
        "_differ(position.target_id, target_id) != _differ(position.data_id, data_id)\n",
        "_differ(position.target_id, target_id)\n",
        (_POSITION,),
    ),
    Mutant(
        "a position outlives the topic of the target", "a name is taken for the thing it named",
        "core/copy/position.py",
        "    return _differ(former, target_id)\n",
        "    return False\n",
        (_POSITION,),
    ),
    Mutant(
        "a saved position counts for a topic that may be another one", "a name is taken for the thing it named",
        "core/copy/position.py",
        "target_id == target_id != \"\"\n",
        "target_id == target_id\n",
        (_POSITION,),
    ),
    Mutant(
        "a copy copies again once its group's offsets have expired", "each record once", "core/copy/position.py",
        "    return Chosen.SAVED if is_known_to_be_of(*saved, target_id) else Chosen.NONE\n",
        "    return Chosen.NONE\n",
        (_POSITION,),
    ),
    Mutant(
        "a copy goes on at the older of two positions", "each record once", "core/copy/position.py",
        "        one.offset > other.offset and",
        "        one.offset < other.offset and",
        (_POSITION,),
    ),
    Mutant(
        "a copy compares positions in different topics", "a name is taken for the thing it named",
        "core/copy/position.py",
        "    if not target_id or one.target_id != target_id or",
        "    if not target_id or",
        (_POSITION,),
    ),
    Mutant(
        "a position that the copy's own topic lacks is not saved", "each record once", "copy/shares.py",
        " or (saved is not None and own != position)\n",
        "\n",
        (_SHARES,),
    ),
    Mutant(
        "the position of a partition in trouble is not saved", "each record once", "copy/shares.py",
        "                        self.unread[share] = position\n",
        "                        pass\n",
        (_SHARES,),
    ),
    Mutant(
        "a later saved position is forgotten before the group has it", "each record once", "copy/shares.py",
        "                    elif not start.reads and (saved",
        "                    if not start.reads and (saved",
        (_SHARES,),
    ),
    Mutant(
        "positions that are read while their topic is made again are not saved", "each record once", "copy/shares.py",
        "        self._tenures.update(self.owned)\n        for share in self.readings():\n",
        "        for share in self.readings():\n",
        (_SHARES,),
    ),
    Mutant(
        "a new partition hides that the target was restored", "each record once", "copy/shares.py",
        "if other == share or (self._settings.by_key and other.topic == share.topic))",
        "if other == share)",
        (_SHARES,),
    ),
    Mutant(
        "an open transaction that hides saved positions is not waited for", "each record once", "copy/shares.py",
        "            raise found.hidden\n",
        "            pass\n",
        (_SHARES,),
    ),
    Mutant(
        "a topic of positions that was made again is not noticed", "each record once", "copy/saved.py",
        "            self._looked_at = found[0].topic_id\n            self.is_new = True\n",
        "            self._looked_at = found[0].topic_id\n",
        (_SAVED,),
    ),
    Mutant(
        "a position that was put back is not committed", "each record once", "copy/shares.py",
        "position is None or group != position or",
        "position is None or",
        (_SHARES,),
    ),
    Mutant(
        "the last of the saved positions are not written", "each record once", "copy/saved.py",
        "        if builder.count:\n",
        "        if builder.count > 1_000:\n",
        (_SAVED,),
    ),
    Mutant(
        "a group whose position cannot be written holds those of others", "groups continue with the same record",
        "copy/groups.py",
        "                failure = failure or error\n",
        "                failure = failure or error\n                break\n",
        (_GROUPS,),
    ),
    Mutant(
        "a copy's positions move though its transaction failed", "each record once", "copy/copier.py",
        "        self.metrics.failed.value += 1\n        self._shares.read_positions_again()\n",
        "        self.metrics.failed.value += 1\n        self._shares.unclaimed.clear()\n",
        (_COPYING,),
    ),
    Mutant(
        "a copy commits no position with its records", "each record once", "copy/writer.py",
        "            await producer.send_offsets(positions, group())\n",
        "            await producer.send_offsets({} if batches else positions, group())\n",
        (_COPYING,),
    ),
    Mutant(
        "a copy by key forgets where records go that are under way", "each record once",
        "copy/topics.py",
        "        self._data |= {share: each.target for share, each in self.wanted.items()}\n",
        "        self._data = {share: each.target for share, each in self.wanted.items()}\n",
        (_TOPICS,),
    ),
)
