"""Bugs by which a backup has a part of a transaction, or a restored cluster takes a former producer's records."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

CUT = unit("core/backup/test_cut.py")
TAKING = unit("backup/test_taking.py")
PARTS = unit("core/backup/test_import_parts.py")
IMPORTING = unit("broker/test_importing.py")
PRODUCE = unit("broker/test_kafka_api.py")
IDS = unit("core/producer/test_pid_blocks.py")
ALLOCATOR = unit("pid/test_restore.py")
TRANSACTIONS = unit("core/transaction/test_restored.py")

MUTANTS = (
    Mutant(
        "a backup has markers of a transaction without its other records", "backups", "core/backup/cut.py",
        "        if piece.serial > through.get(",
        "        if False and piece.serial > through.get(",
        (CUT, TAKING),
    ),
    Mutant(
        "a backup has a transaction that has read one that it lacks", "backups", "core/backup/cut.py",
        "        while heap and -heap[0][0] > beyond[partition]:\n",
        "        while False:\n",
        (CUT, TAKING),
    ),
    Mutant(
        "a transaction that leaves a backup leaves no later one of its id", "backups", "core/backup/cut.py",
        "                through[transactional_id] = serial - 1\n                shorten(transactional_id)\n",
        "                through[transactional_id] = serial - 1\n",
        (CUT,),
    ),
    Mutant(
        "a backup does not wait for markers", "backups", "backup/taking.py",
        "        await self._markers_stored(ids.preparing)\n",
        "",
        (TAKING,),
    ),
    Mutant(
        "a restored cluster hands out ids of its former self", "backups", "core/backup/manifest.py",
        "        return (self.highest_producer_id // _IDS_APART + 2) * _IDS_APART\n",
        "        return self.highest_producer_id\n",
        (unit("core/backup/test_manifest.py"),),
    ),
    Mutant(
        "a backup forgets transactions that were open at its predecessor's end", "backups", "backup/taking.py",
        "        found = _Read(continued, Scan(continued.opened))\n",
        "        found = _Read(continued, Scan())\n",
        (TAKING,),
    ),
    Mutant(
        "a backup continues a log whose records were replaced", "backups", "backup/taking.py",
        "                if (header.base_offset, header.crc) == (offset, crc):\n",
        "                if True:\n",
        (TAKING,),
    ),
    Mutant(
        "an expiry removes objects of a backup that is running", "backups", "backup/taking.py",
        "            if name not in needed and name.split(\"/\")[1] not in held:\n",
        "            if name not in needed:\n",
        (TAKING,),
    ),
    Mutant(
        "an expiry removes the backup that a running one continues", "backups", "backup/taking.py",
        "        bases = {base for _, base in _running(store, now_ms)}\n",
        "        bases = {\"\"}\n",
        (TAKING,),
    ),
    Mutant(
        "a damaged backup is continued", "backups", "backup/manifests.py",
        "    if len(lines) < 2 or sha256(lines[1]).hexdigest() != document.get(\"sha256\"):\n",
        "    if len(lines) < 2:\n",
        (unit("backup/test_damage.py"),),
    ),
    Mutant(
        "an object with a flipped bit is restored", "backups", "backup/reading.py",
        "    if sha256(content).hexdigest() != stored.sha256:\n",
        "    if False:\n",
        (unit("backup/test_damage.py"),),
    ),
    Mutant(
        "a producer of before a restore is taken for a new one", "backups", "broker/kafka_api.py",
        "            elif 0 <= producer_id < floor:\n",
        "            elif False:\n",
        (PRODUCE,),
    ),
    Mutant(
        "a client writes to a topic that is being restored", "backups", "broker/kafka_api.py",
        "            elif replica.settings.restoring:\n",
        "            elif False:\n",
        (PRODUCE,),
    ),
    Mutant(
        "a marker gets between the records of a backup", "backups", "broker/accepting.py",
        "    if partition.settings.restoring:  #",
        "    if False:  #",
        (IMPORTING,),
    ),
    Mutant(
        "batches are imported into a topic that clients use", "backups", "broker/importing.py",
        "    if not replica.settings.restoring:\n",
        "    if False:\n",
        (IMPORTING,),
    ),
    Mutant(
        "a repeated import stores its batches twice", "backups", "broker/importing.py",
        "            if header.next_offset <= machine.log_end_offset:\n                continue\n",
        "            if header.next_offset <= machine.log_end_offset:\n"
        "                pass\n",
        (IMPORTING,),
    ),
    Mutant(
        "a follower keeps parts of batches that it refuses", "backups", "broker/importing.py",
        "    _check_leads(replica)\n    if size:\n",
        "    if size:\n",
        (IMPORTING,),
    ),
    Mutant(
        "a restore goes on without the id of a topic that it has created", "backups", "backup/cluster.py",
        "            if lacking:\n",
        "            if False:\n",
        (unit("backup/test_at_the_same_time.py"),),
    ),
    Mutant(
        "a node hands out ids of before a restore", "backups", "core/producer/pid_blocks.py",
        "            dropped = min(block.size, floor - block.first) - self._given_of_first\n",
        "            dropped = block.size - self._given_of_first\n",
        (IDS,),
    ),
    Mutant(
        "the next block forgets the floor of producer ids", "backups", "pid/blocks.py",
        "replace(counter, next=ProducerId(block.end))",
        "PidCounterRecord(ProducerId(block.end))",
        (ALLOCATOR,),
    ),
    Mutant(
        "a restored id gets a producer id of before", "backups", "core/transaction/admin.py",
        "    while (producer_id := context.ids.take()) is not None and producer_id < request.producer_id_floor:\n",
        "    while (producer_id := context.ids.take()) is not None and producer_id < 0:\n",
        (TRANSACTIONS,),
    ),
    Mutant(
        "a restore takes over an id that is in use", "backups", "core/transaction/admin.py",
        "        if used or replace(",
        "        if False and replace(",
        (TRANSACTIONS,),
    ),
    Mutant(
        "a restored lease counts from zero", "backups", "core/producer/leases.py",
        "partitions=tuple(counts), carried=dict(counts))\n",
        "partitions=tuple(counts), carried={})\n",
        (ALLOCATOR,),
    ),
    Mutant(
        "a backup splits a transaction over a topic that is created again", "backups", "backup/taking.py",
        "        before = {name: end for name, end in before.items() if name.topic not in other}\n",
        "",
        (unit("backup/test_deleted_topics.py"),),
    ),
    Mutant(
        "a topic that one node has not heard of is left out of a backup", "backups", "backup/taking.py",
        "                raise\n\n    async def _described(",
        "                pass\n\n    async def _described(",
        (unit("backup/test_deleted_topics.py"),),
    ),
    Mutant(
        "a listing believes the node that is asked first", "backups", "client/newest_image.py",
        "    return max(answers, key=lambda node: image_revision(answers[node]) or 0)\n",
        "    return min(answers)\n",
        (unit("client/test_newest_image.py"),),
    ),
    Mutant(
        "a listing passes over a node that does not answer", "backups", "client/newest_image.py",
        "        if each.broker_id in silent:\n",
        "        if False:\n",
        (unit("client/test_newest_image.py"),),
    ),
    Mutant(
        "a new leader's first high watermark ends a log", "backups", "backup/cluster.py",
        "            if not found.data and found.high_watermark < end:",
        "            if False:",
        (unit("backup/test_deleted_topics.py"),),
    ),
    Mutant(
        "two restores of different backups are mixed", "backups", "backup/restoring.py",
        "            if found != self._manifest.backup:\n",
        "            if False:\n",
        (unit("backup/test_at_the_same_time.py"),),
    ),
    Mutant(
        "a restore goes on over ids that producers of the cluster use", "backups", "backup/restoring.py",
        " or each.producer_id < floor or each.state",
        " or each.state",
        (unit("backup/test_not_empty.py"),),
    ),
    Mutant(
        "an interrupted restore without topics is not finished", "backups", "backup/restoring.py",
        "            if each.transactional_id not in names or",
        "            if True or",
        (unit("backup/test_not_empty.py"),),
    ),
    Mutant(
        "a backup believes clocks about what was decided lately", "backups", "backup/taking.py",
        "                        if header.next_offset > at_first or record.state",
        "                        if record.state",
        (unit("backup/test_clocks_and_deletions.py"),),
    ),
    Mutant(
        "a backup whose objects were removed is finished", "backups", "backup/taking.py",
        "            await self._check_running()\n            await self._put(",
        "            await self._put(",
        (unit("backup/test_clocks_and_deletions.py"),),
    ),
    Mutant(
        "a part of a batch is imported without those before it", "backups", "core/backup/import_parts.py",
        "        if position > (0 if held is None else len(held.parts)):\n",
        "        if False:\n",
        (IMPORTING,),
    ),
    Mutant(
        "a broker takes a batch of a backup of any size", "backups", "core/backup/import_parts.py",
        "        if size > limit:\n",
        "        if False:\n",
        (PARTS,),
    ),
    Mutant(
        "the batches that a broker receives in parts have no bound together", "backups", "core/backup/import_parts.py",
        "        if self.reserved + size > limit:\n",
        "        if False:\n",
        (PARTS,),
    ),
    Mutant(
        "parts of a restore that was given up stay", "backups", "broker/periodic_tasks.py",
        "        context.import_parts.let_go(context.clock.monotonic_ms())\n",
        "",
        (IMPORTING,),
    ),
)
