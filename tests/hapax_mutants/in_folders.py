"""Bugs in the handling of the disk: names, handles, what counts as synced, and what is trusted in a folder after a
crash."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

CLOSED = "rule 25: a replica that went away neither acknowledges nor ends the process"

MUTANTS = (
    Mutant(
        "a file counts as synced by its size", "rule 25: it was cut and grew to the same size while the sync ran",
        "log/segment_log.py",
        "            if self._unsynced.get(segment) == generation:\n",
        "            if segment in self._unsynced:\n",
        (unit("log/test_truncation.py"),),
    ),
    Mutant(
        "a preferred election confirms who came back without data", "rule 5", "core/cluster/failover.py",
        "        confirmed = broker is not None and (node == leader or broker.has_what(recorded))\n",
        "        confirmed = broker is not None\n",
        (unit("core/cluster/test_failover.py"),),
    ),
    Mutant(
        "a preferred election keeps who came back without data", "rule 5", "core/cluster/failover.py",
        "    return _led(partition, wanted, _members(partition, brokers), brokers)\n",
        "    return _led(partition, wanted, partition.isr, brokers)\n",
        (unit("core/cluster/test_failover.py"),),
    ),
    Mutant(
        "who was elected dead and lost its writes leads on", "rule 5", "core/cluster/failover.py",
        "    partition = _recalled(partition, brokers)\n",
        "",
        (unit("core/cluster/test_failover.py"),),
    ),
    Mutant(
        "members that were passed over long ago are recalled", "rule 5", "core/cluster/failover.py",
        "    passed_over = () if len(partition.isr) >= least else left_out(partition, partition.isr)\n",
        "    passed_over = left_out(partition, partition.isr)\n",
        (unit("core/cluster/test_failover.py"),),
    ),
    Mutant(
        "who left a leader that died is not remembered", "rule 5, KIP-966", "core/cluster/failover.py",
        "        return _restricted(partition, kept, named)\n",
        "        return _restricted(partition, kept, ())\n",
        (unit("core/cluster/test_failover.py"),),
    ),
    Mutant(
        "a leader commits while the record names others that would lead for it", "rule 5, KIP-966",
        "core/partition/replication.py",
        "        if self.passed_over or len(self.isr) < self._effective_minimum:\n",
        "        if len(self.isr) < self._effective_minimum:\n",
        (unit("core/cluster/test_failover_data.py"),),
    ),
    Mutant(
        "a copy that others may need is started over", "rule 5, KIP-966", "core/partition/replication.py",
        "        if node in self.isr or node in self.passed_over or (self.pending is not None and node in self.pending.added):\n",
        "        if node in self.isr:\n",
        (unit("core/cluster/test_failover_data.py"),),
    ),
    Mutant(
        "a damaged copy is fallen back on", "rule 5, KIP-966", "core/cluster/damage.py",
        "        passed_over=tuple(each for each in partition.passed_over if each[0] != me))\n",
        "        passed_over=partition.passed_over)\n",
        (unit("core/cluster/test_failover.py"),),
    ),
    Mutant(
        "a path is taken for the folder that it named", "rule 10: the next topic of that name has it by now",
        "runtime/disk.py",
        "        writing = self._off_loop(_write_atomically, path, data)\n",
        "        writing = self._disk.off_loop(_write_atomically, self._disk._fd, os.path.join(self.path, path), data)\n",
        (unit("broker/test_partitions.py"),),
    ),
    Mutant(
        "what is synced of a log that was closed meanwhile is told", CLOSED, "log/segment_log.py",
        "        if self._closed:\n            return\n",
        "",
        (unit("log/test_segment_log.py"), unit("broker/test_commit.py")),
    ),
    Mutant(
        "a sync whose log is closed meanwhile succeeds", CLOSED, "log/segment_log.py",
        "        self._check_open()\n        self.finish_sync(unsynced)\n",
        "        self.finish_sync(unsynced)\n",
        (unit("log/test_segment_log.py"),),
    ),
    Mutant(
        "a log that was closed is written to", CLOSED, "log/segment_log.py",
        "        self._check_open()\n        if self._torn:\n",
        "        if self._torn:\n",
        (unit("log/test_segment_log.py"),),
    ),
    Mutant(
        "a write to a replica that went away makes the disk suspect", CLOSED, "broker/storage.py",
        "        if partition.storage_error or isinstance(error, FolderClosed):\n",
        "        if partition.storage_error:\n",
        (unit("broker/test_storage.py"),),
    ),
    Mutant(
        "a write to a replica that went away is refused as by a broken disk", CLOSED, "broker/replica.py",
        "        except FolderClosed as closed:\n",
        "        except NotADirectoryError as closed:\n",
        (unit("broker/test_replica.py"),),
    ),
    Mutant(
        "a torn tail that could not be cut is forgotten", "rule 13", "log/segment_log.py",
        "            self._torn = True\n            with suppress(OSError):\n",
        "            with suppress(OSError):\n",
        (unit("log/test_segment_log.py"),),
    ),
    Mutant(
        "a swap that goes on after a crash removes the new time index", "rule 13", "log/compaction.py",
        "        elif suffix not in files:\n",
        "        elif suffix != LOG:\n",
        (unit("broker/test_compaction.py"),),
    ),
    Mutant(
        "a snapshot of another course comes back after a power cut", "rule 13: a crash at every disk operation",
        "log/segment_log.py",
        "        if ahead:\n            await sync_folder(self.folder)\n",
        "",
        (unit("log/test_crash_points.py"),),
    ),
    Mutant(
        "a snapshot is there before the indexes of what it covers", "rule 13: a crash at every disk operation",
        "log/segment_log.py",
        "        await sync_folder(self.folder)  # no snapshot without the indexes of what it covers\n",
        "",
        (unit("log/test_crash_points.py"),),
    ),
    Mutant(
        "a segment that a crash closed has no last time", "ListOffsets and retention by time", "log/recovery.py",
        "                scanned[-1].close_for_writing()  # the crash came after its roll, before its indexes were written\n",
        "                pass\n",
        (unit("log/test_crash_points.py"),),
    ),
    Mutant(
        "recovery forgets the times below its snapshot", "ListOffsets and retention by time", "log/recovery.py",
        "            segment.note_again(position)\n",
        "",
        (unit("log/test_crash_points.py"),),
    ),
    Mutant(
        "a torn batch takes the segment's times with it", "ListOffsets and retention by time", "log/segment.py",
        "        self.note_again(position)\n",
        "",
        (unit("log/test_crash_points.py"),),
    ),
    Mutant(
        "a folder is believed by the setting of the process that finds it", "rule 5: page cache, a power cut, then fsync",
        "broker/intact_since.py",
        "clean or former.get(\"durability\") == _SYNCED else 0\n",
        "True else 0\n",
        (unit("broker/test_replication.py"),),
    ),
    Mutant(
        "records lie in a folder before it says whose they are", "rule 10: a crash at every disk operation",
        "broker/partitions.py",
        "        await segment_log.sync_names()  # before any record: after a power cut they must not lie there without a name\n",
        "",
        (unit("broker/test_partition_crashes.py"),),
    ),
)
