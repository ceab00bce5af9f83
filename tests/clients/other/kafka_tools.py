"""Kafka's own command-line tools, by the names of their scripts, in one JVM that runs one after another."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final, NamedTuple

from clients.other import java_command, started

TOOLS: Final = {
    "kafka-acls": "AclCommand",
    "kafka-broker-api-versions": "BrokerApiVersionsCommand",
    "kafka-client-metrics": "ClientMetricsCommand",
    "kafka-cluster": "ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "consumer.ConsoleConsumer",
    "kafka-console-producer": "ConsoleProducer",
    "kafka-consumer-groups": "consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": "DeleteRecordsCommand",
    "kafka-dump-log": "DumpLogSegments",
    "kafka-features": "FeatureCommand",
    "kafka-get-offsets": "GetOffsetShell",
    "kafka-groups": "GroupsCommand",
    "kafka-leader-election": "LeaderElectionCommand",
    "kafka-log-dirs": "LogDirsCommand",
    "kafka-metadata-quorum": "MetadataQuorumCommand",
    "kafka-reassign-partitions": "reassign.ReassignPartitionsCommand",
    "kafka-streams-application-reset": "StreamsResetter",
    "kafka-topics": "TopicCommand",
    "kafka-transactions": "TransactionsCommand",
    "kafka-verifiable-consumer": "VerifiableConsumer",
    "kafka-verifiable-producer": "VerifiableProducer",
}


def class_of(tool: str) -> str:
    name = TOOLS[tool]
    return name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"


class Ran(NamedTuple):
    code: int
    output: str

    def rows(self) -> list[list[str]]:
        """The words of each line that has any, without a header in capitals."""
        lines = [line.split() for line in self.output.splitlines()]
        return [words for words in lines if words and not all(word.strip("#()").isupper() for word in words)]


class KafkaTools:
    """Against one cluster."""

    def __init__(self, bootstrap: str, log: IO[str]) -> None:
        self.bootstrap = bootstrap
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def run(self, tool: str, *arguments: str, text: str = "", local: bool = False) -> Ran:
        """`text`: its standard input. `local`: it asks no cluster."""
        server = [] if local else ["--bootstrap-server", self.bootstrap]
        # argparse4j takes options of the whole command only before the subcommand; kafka-cluster has none.
        words = [*arguments, *server] if tool == "kafka-cluster" else [*server, *arguments]
        if self._process is None:
            self._process = started(java_command("tools", "Tools"), self._log.fileno())
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"tool": class_of(tool), "arguments": words, "input": text}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise AssertionError(f"the tools ended in {tool} {arguments}:\n{self._log.read()[-6000:]}")
        said = json.loads(answer)
        return Ran(said["code"], said["output"])

    def ok(self, tool: str, *arguments: str, text: str = "", local: bool = False) -> Ran:
        ran = self.run(tool, *arguments, text=text, local=local)
        assert ran.code == 0 and "Exception" not in ran.output and "Error" not in ran.output, (arguments, ran)
        return ran

    def says(self, expected: str, tool: str, *arguments: str, text: str = "") -> Ran:
        """The pattern is found in the output, whatever the exit code."""
        ran = self.run(tool, *arguments, text=text)
        assert re.search(expected, ran.output), (arguments, ran)
        return ran

    def fails(self, expected: str, tool: str, *arguments: str, text: str = "") -> Ran:
        ran = self.says(expected, tool, *arguments, text=text)
        assert ran.code != 0, (arguments, ran)
        return ran

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def kafka_tools(bootstrap: str) -> Iterator[KafkaTools]:
    with tempfile.TemporaryFile("w+") as log:
        tools = KafkaTools(bootstrap, log)
        try:
            yield tools
        finally:
            tools.end()


class Verifiable:
    """A verifiable producer or consumer: a process that tells what it does in lines of JSON, gathered in `events`."""

    def __init__(self, tool: str, bootstrap: str, arguments: Sequence[str], log: IO[str]) -> None:
        self.events: list[dict[str, Any]] = []
        command = [*java_command("tools", class_of(tool)), "--bootstrap-server", bootstrap, *arguments]
        self._process = started(command, log.fileno())
        self._thread = threading.Thread(target=self._gather)
        self._thread.start()

    def _gather(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["name"] == name]

    def stop(self) -> None:
        """In order, if it still runs."""
        self._process.terminate()
        self._process.wait(30)
        self._thread.join()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
