import java.nio.file.Files;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Produced;

/** A stateful word count of Kafka Streams with exactly_once_v2. Its instances are processes that may be killed. */
final class Streams {
    private static final int PARTITIONS = 2;
    private static final int WORDS = 7;

    static void register(Map<String, Main.Scenario> all) {
        all.put("streams-input", Streams::input);
        all.put("streams-instance", Streams::instance);
        all.put("streams-output", Streams::output);
    }

    /** The first argument is the number of lines, each of one word. */
    static void input(Cell cell) throws Exception {
        cell.topic(cell.name + "-in", PARTITIONS);
        cell.topic(cell.name + "-out", PARTITIONS);
        produce(cell, Integer.parseInt(cell.argument(0)));
    }

    private static void produce(Cell cell, int lines) throws Exception {
        cell.produce(cell.name + "-in", PARTITIONS, 0, lines);
    }

    /** Runs until it is killed. The first argument is its number. */
    static void instance(Cell cell) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(cell.name + "-in")
                .groupBy((key, value) -> "word" + Integer.parseInt(value) % WORDS)
                .count()
                .toStream()
                .mapValues(count -> String.valueOf(count))
                .to(cell.name + "-out", Produced.with(Serdes.String(), Serdes.String()));
        Properties settings = new Properties();
        settings.putAll(Map.of(
                "application.id", cell.name,
                "bootstrap.servers", cell.bootstrap,
                "processing.guarantee", "exactly_once_v2",
                "state.dir", Files.createTempDirectory("streams").toString(),
                "default.key.serde", Serdes.StringSerde.class,
                "default.value.serde", Serdes.StringSerde.class,
                "commit.interval.ms", 50,
                "statestore.cache.max.bytes", 0,
                "replication.factor", -1));
        settings.put("consumer.session.timeout.ms", 6000);
        settings.put("consumer.heartbeat.interval.ms", 500);
        settings.put("consumer.max.poll.records", 20);
        settings.put("producer.transaction.timeout.ms", 5000);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(failure -> {
            failure.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        System.in.read(); // until the test closes it
        streams.close(Duration.ofSeconds(30));
    }

    /**
     * Follows the output until every line is counted, and prints how many are. Every count of every word must appear
     * exactly once and in order: cached updates are off, so one line makes one output.
     */
    static void output(Cell cell) throws Exception {
        int lines = Integer.parseInt(cell.argument(0));
        Map<String, Integer> counts = new HashMap<>();
        int[] progress = {0, 0};
        try (var reader = cell.consumer()) {
            reader.assign(List.of(new TopicPartition(cell.name + "-out", 0), new TopicPartition(cell.name + "-out", 1)));
            Cell.until("last count", () -> {
                reader.poll(Cell.POLL).forEach(each -> {
                    Cell.equal(counts.merge(each.key(), 1, Integer::sum), Integer.valueOf(each.value()));
                    progress[0]++;
                });
                for (; progress[1] <= progress[0]; progress[1] += 100) {
                    Cell.at(progress[1]);
                }
                return progress[0] >= lines;
            });
        }
        Cell.equal(lines, counts.values().stream().mapToInt(Integer::intValue).sum());
    }
}
