"""Bugs in the ready-made loop of the native client, `process`."""


from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import Mutant, unit

MACHINE: Final = "client/process_machine.py"
STEPS: Final = (unit("client/test_process_machine.py"),)
ORIGIN: Final = "docs/client.md, The loop, ready-made"

MUTANTS = (
    Mutant(
        "a commit without an answer is taken for one that failed", ORIGIN, MACHINE,
        "        elif self._phase in (_Phase.WRITING, _Phase.COMMITTING) and kind is not Kind.UNKNOWN:\n",
        "        elif self._phase in (_Phase.WRITING, _Phase.COMMITTING):\n",
        STEPS,
    ),
    Mutant(
        "the outcome of a commit is asked for without an end", ORIGIN, MACHINE,
        "        elif self._phase in (_Phase.COMMITTING, _Phase.ABORTING) and now >= self._until():\n",
        "        elif False:\n",
        STEPS,
    ),
    Mutant(
        "a stop does not bound the wait for an outcome", ORIGIN, MACHINE,
        "        return self._deadline if self._stop_at is None else min(self._deadline, self._stop_at)\n",
        "        return self._deadline\n",
        STEPS,
    ),
    Mutant(
        "records of a partition that was given up are processed", ORIGIN, MACHINE,
        "                self._records = [r for r in self._records if (r.topic, r.partition) != partition]\n",
        "                pass\n",
        STEPS,
    ),
    Mutant(
        "a batch that was too slow is read again as it was", ORIGIN, MACHINE,
        "        self._limit = max(1, min(self._limit, len(self._records)) // 2)\n",
        "",
        STEPS,
    ),
    Mutant(
        "an aborted batch is tried again without a pause", ORIGIN, MACHINE,
        "        self._pause(self.aborts, now)\n",
        "",
        STEPS,
    ),
    Mutant(
        "dead letters of an aborted batch are reported", ORIGIN, MACHINE,
        "        self._records, self._first, self._outputs, self._dead = [], {}, [], []\n",
        "        self._records, self._first, self._outputs = [], {}, []\n",
        STEPS,
    ),
    Mutant(
        "a dead letter that is refused is tried for ever", ORIGIN, MACHINE,
        "        if self._rules.dead_letters is None or place in self._condemned:\n",
        "        if self._rules.dead_letters is None:\n",
        STEPS,
    ),
    Mutant(
        "a commit of another partition ends the count of a record's refusals", ORIGIN, MACHINE,
        "            for place in map(_place, self._records):\n",
        "            for place in list(self._refusals):\n",
        STEPS,
    ),
    Mutant(
        "a record whose results were refused is processed again amid others", ORIGIN, MACHINE,
        "(at for at in range(self._called, len(self._records)) if _place(self._records[at]) in self._condemned)",
        "iter(())",
        STEPS,
    ),
    Mutant(
        "a cancellation in the function is no failed attempt", ORIGIN, "client/processor.py",
        "                if is_asked_to_end():\n",
        "                if True:\n",
        (unit("client/test_processor.py"),),
    ),
    Mutant(
        "a function that cancels its own task is called for ever", ORIGIN, "client/processor.py",
        "lambda: self._overdue or self._given_up_by_caller)",
        "supervision.is_asked_to_end)",
        (unit("client/test_processor.py"),),
    ),
    Mutant(
        "a cancellation that the function swallows ends nothing", ORIGIN, "client/processor.py",
        "            if supervision.is_asked_to_end():",
        "            if False:",
        (unit("client/test_processor.py"),),
    ),
    Mutant(
        "a result that cannot be written fails the transaction, not the function", ORIGIN, "client/processor.py",
        "isinstance(result.key, _BYTES) and isinstance(result.topic, str)):\n",
        "isinstance(result.key, _BYTES) and isinstance(result.topic, str)) and False:\n",
        (unit("client/test_processor.py"),),
    ),
    Mutant(
        "a stop is not heard while the processor starts", ORIGIN, "client/processor.py",
        "isinstance(self._action, Collect | Pause | None)",
        "isinstance(self._action, Collect | Pause)",
        (unit("client/test_processor.py"),),
    ),
    Mutant(
        "the end of a stop's time between two actions is missed", ORIGIN, "client/processor.py",
        "        if self._overdue:\n",
        "        if False:\n",
        (unit("client/test_processor.py"),),
    ),
    Mutant(
        "a stop waits for further attempts of the function", ORIGIN, MACHINE,
        "        between_attempts = self._phase is _Phase.CALLING and self._attempts > 0\n",
        "        between_attempts = False\n",
        STEPS,
    ),
    Mutant(
        "a stop gives up a commit that is under way", ORIGIN, MACHINE,
        "self._phase in (_Phase.COLLECTING, _Phase.GOING_BACK, _Phase.RENEWING)",
        "self._phase in (_Phase.COLLECTING, _Phase.GOING_BACK, _Phase.RENEWING, _Phase.COMMITTING)",
        STEPS,
    ),
    Mutant(
        "a topic that does not exist is waited for again and again", ORIGIN, "client/processor.py",
        "_PASSING: Final = frozenset(TRANSIENT) - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} | {\n",
        "_PASSING: Final = frozenset(TRANSIENT) | {\n",
        STEPS,
    ),
    Mutant(
        "polls that fail at once leave no turn to anything else", ORIGIN, "client/processor.py",
        "                await asyncio.sleep(0)  # neither",
        "                pass  # neither",
        (unit("client/test_processor.py"),),
    ),
    Mutant(
        "an instance that was idle for long fences its successor", ORIGIN, "client/processor.py",
        "                if await self.producer._has_expired():\n",
        "                if True:\n",
        (unit("client/test_processor.py"),),
    ),
    Mutant(
        "an id that expired while nothing came ends the processor", ORIGIN, "client/processor.py",
        "        if error.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:\n",
        "        if False:\n",
        (unit("client/test_processor.py"),),
    ),
    Mutant(
        "a block ends as if a record that nothing tells of had been written", "docs/client.md, Write",
        "client/producer.py",
        "            lost = None if self._id is not None else self._engine.unreported\n",
        "            lost = None\n",
        (unit("client/test_closing_a_producer.py"),),
    ),
    Mutant(
        "a time that no record can have fails the transaction and not the function", ORIGIN, "client/processor.py",
        "    if result.timestamp_ms is not None:\n",
        "    if False:\n",
        (unit("client/test_processor.py"),),
    ),
)
