"""Tasks that end without notice, timers that are never set again, intents that are not compared with the state."""


from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

MUTANTS = (
    Mutant(
        "a long-lived task ends with its first exception", "supervised tasks", "runtime/supervision.py",
        "            failed(name, error, detail)\n        if loop.time() - began",
        "            return\n        if loop.time() - began",
        (unit("broker/test_clocks.py"), unit("runtime/test_supervision.py")),
    ),
    Mutant(
        "a long-lived task ends when what it awaits is cancelled", "supervised tasks", "runtime/supervision.py",
        "        except (Exception, asyncio.CancelledError) as error:\n", "        except Exception as error:\n",
        (unit("runtime/test_supervision.py"),),
    ),
    Mutant(
        "one partition's failure ends a round of upkeep", "supervised tasks", "runtime/supervision.py",
        "    except Exception as error:\n        failed(name, error, detail)\n",
        "    except Exception as error:\n        failed(name, error, detail)\n        raise\n",
        (unit("broker/test_clocks.py"),),
    ),
    Mutant(
        "a transaction's timer that fires early is never set again", "rule 14", "core/transaction/machine.py",
        "        if decision is None and transaction.is_open:\n", "        if False:\n",
        (unit("core/transaction/test_time.py"), unit("coordinator/test_transactions.py")),
    ),
    Mutant(
        "a timer that was set again is not started", "rule 14", "coordinator/transactions.py",
        "            self._carry_out(decision.effects)\n", "            pass\n",
        (unit("coordinator/test_transactions.py"),),
    ),
    Mutant(
        "a sweep of a broker corrects nothing", "rule 25", "broker/sweep.py",
        "                correct(due)\n", "                pass\n",
        (unit("broker/test_sweep.py"),),
    ),
    Mutant(
        "a stalled committer is not woken", "rule 25", "broker/sweep.py",
        "            committer.open_lanes()\n", "            pass\n",
        (unit("broker/test_sweep.py"),),
    ),
    Mutant(
        "a sweep takes what it sees once for lost", "rule 25", "core/intent.py",
        "        due = [each for each, times in looks.items() if times >= seen[each]]\n",
        "        due = list(looks)\n",
        (unit("core/test_intent.py"), unit("broker/test_sweep.py")),
    ),
    Mutant(
        "an open transaction without a timer is not noticed", "rule 25", "core/transaction/machine.py",
        "            if progress.began is not None and each not in timed\n", "            if False\n",
        (unit("coordinator/test_sweep.py"),),
    ),
    Mutant(
        "lost markers are not noticed", "rule 25", "core/transaction/machine.py",
        " for each, progress in free if progress.unmarked is not None]\n", " for each, progress in free if False]\n",
        (unit("coordinator/test_sweep.py"),),
    ),
    Mutant(
        "a transactional id may be longer than its key can tell", "validate before deciding",
        "core/transaction/steps.py", "    if size > LONGEST_NAME_BYTES:\n", "    if False:\n",
        (unit("core/transaction/test_single_writer.py"),),
    ),
    Mutant(
        "a group may be longer than its key can tell", "validate before deciding", "core/group/offsets.py",
        "        if len(group_id.encode()) > LONGEST_NAME_BYTES:\n", "        if False:\n",
        (unit("core/group/test_names.py"),),
    ),
    Mutant(
        "a former leader remembers transactional ids for ever", "rule 24", "broker/parked_writes.py",
        "        self.transactional_ids.clear()\n", "        pass\n",
        (unit("broker/test_parked_writes.py"),),
    ),
)
