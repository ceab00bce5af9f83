import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Producing, with idempotence and in transactions, and reading without a group. */
final class Records {
    static void register(Map<String, Main.Scenario> all) {
        all.put("idempotent", Records::idempotent);
        all.put("contents", Records::contents);
        all.put("transactions", Records::transactions);
        all.put("zombie", Records::zombie);
        all.put("offsets", Records::offsets);
        all.put("refused", Records::refused);
        all.put("recompressed", Records::recompressed);
    }

    static void idempotent(Cell cell) throws Exception {
        String topic = cell.topic(2);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = cell.producer("linger.ms", 1, "batch.size", 200)) {
            for (int i = 0; i < 400; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, i % 2, null, String.valueOf(i))));
            }
        }
        for (int i = 0; i < 400; i++) {
            Cell.equal((long) i / 2, sent.get(i).get().offset());
        }
        for (int partition = 0; partition < 2; partition++) {
            int chosen = partition;
            Cell.equal(IntStream.range(0, 200).mapToObj(i -> String.valueOf(2 * i + chosen)).toList(),
                    cell.read(topic, 2, "read_committed").stream().filter(each -> each.partition() == chosen)
                            .map(ConsumerRecord::value).toList());
        }
    }

    private static void create(Cell cell, String topic, Map<String, String> configs) throws Exception {
        try (Admin admin = cell.admin()) {
            Cell.get(admin.createTopics(List.of(
                    new NewTopic(topic, Optional.of(1), Optional.empty()).configs(configs))).all());
        }
    }

    /** A batch with one bad record is refused as a whole, and each record's error says why (KIP-467). */
    static void refused(Cell cell) throws Exception {
        String compacted = cell.name + "-compacted";
        String timed = cell.name + "-timed";
        create(cell, compacted, Map.of("cleanup.policy", "compact"));
        create(cell, timed, Map.of("message.timestamp.before.max.ms", "1000000"));
        long now = System.currentTimeMillis();
        for (String compression : List.of("none", "zstd")) {
            try (KafkaProducer<String, String> producer = cell.producer("linger.ms", 200, "compression.type", compression)) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (String key : new String[] {"a", null, "c"}) {
                    sent.add(producer.send(new ProducerRecord<>(compacted, 0, key, "v")));
                }
                producer.flush();
                for (int i = 0; i < 3; i++) {
                    Future<RecordMetadata> each = sent.get(i);
                    Class<? extends Exception> kind = i == 1 ? InvalidRecordException.class : KafkaException.class;
                    String message = Cell.fails(kind, () -> caused(each)).getMessage();
                    Cell.check(message.contains("must have a key") == (i == 1), "record " + i + ": " + message);
                }
                Cell.equal(0L, caused(producer.send(new ProducerRecord<>(compacted, 0, "k", "v"))).offset()
                        - (compression.equals("none") ? 0 : 1));
            }
            try (KafkaProducer<String, String> producer = cell.producer("compression.type", compression)) {
                for (long timestamp : new long[] {now - 2_000_000, now + 7_200_000}) {
                    Cell.fails(InvalidTimestampException.class, () -> caused(
                            producer.send(new ProducerRecord<>(timed, 0, timestamp, null, "v"))));
                }
                caused(producer.send(new ProducerRecord<>(timed, 0, now - 900_000, null, "v")));
            }
        }
        Cell.equal(List.of("v", "v"), cell.values(compacted, 1, "read_committed"));
        Cell.equal(List.of("v", "v"), cell.values(timed, 1, "read_committed"));
    }

    private static RecordMetadata caused(Future<RecordMetadata> sent) throws Exception {
        try {
            return sent.get();
        } catch (ExecutionException failure) {
            throw (Exception) failure.getCause();
        }
    }

    /** The broker compresses what producers send as the topic wants it: with idempotence and in transactions. */
    static void recompressed(Cell cell) throws Exception {
        for (String wanted : List.of("uncompressed", "gzip", "snappy", "lz4", "zstd")) {
            String topic = cell.name + "-" + wanted;
            create(cell, topic, Map.of("compression.type", wanted));
            List<String> expected = new ArrayList<>();
            for (String sent : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                try (KafkaProducer<String, String> producer = cell.producer("compression.type", sent, "linger.ms", 1,
                        "batch.size", 500, "transactional.id", topic + "-" + sent)) {
                    producer.initTransactions();
                    for (int transaction = 0; transaction < 3; transaction++) {
                        producer.beginTransaction();
                        for (int i = 0; i < 40; i++) {
                            producer.send(new ProducerRecord<>(topic, 0, sent, "value " + transaction + "." + i));
                        }
                        if (transaction == 1) {
                            producer.flush();
                            producer.abortTransaction();
                        } else {
                            producer.commitTransaction();
                            for (int i = 0; i < 40; i++) {
                                expected.add("value " + transaction + "." + i);
                            }
                        }
                    }
                }
            }
            Cell.equal(expected, cell.values(topic, 1, "read_committed"));
        }
    }

    /** Keys, headers, timestamps, tombstones and every compression come back as they were sent. */
    static void contents(Cell cell) throws Exception {
        String topic = cell.topic(1);
        for (String compression : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (KafkaProducer<String, String> producer = cell.producer("compression.type", compression,
                    "linger.ms", 50)) {
                for (String value : new String[] {"first of " + compression, null}) {
                    ProducerRecord<String, String> record = new ProducerRecord<>(topic, 0, 1234567L, compression, value);
                    record.headers().add("h", compression.getBytes(StandardCharsets.UTF_8));
                    producer.send(record);
                }
            }
        }
        List<ConsumerRecord<String, String>> found = cell.read(topic, 1, "read_committed");
        Cell.equal(10, found.size());
        for (int i = 0; i < 10; i++) {
            ConsumerRecord<String, String> record = found.get(i);
            Cell.equal((long) i, record.offset());
            Cell.equal(1234567L, record.timestamp());
            Cell.equal(i % 2 == 0 ? "first of " + record.key() : null, record.value());
            Cell.equal(record.key(), new String(record.headers().lastHeader("h").value(), StandardCharsets.UTF_8));
        }
    }

    static void transactions(Cell cell) throws Exception {
        String topic = cell.topic(2);
        try (KafkaProducer<String, String> producer = cell.producer("transactional.id", cell.name)) {
            producer.initTransactions();
            for (String each : List.of("a", "b", "c")) {
                producer.beginTransaction();
                for (int i = 0; i < 4; i++) {
                    producer.send(new ProducerRecord<>(topic, i % 2, each, each + i));
                }
                if (each.equals("b")) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        cell.decided(topic, 2);
        Cell.equal(List.of("a0", "a1", "a2", "a3", "c0", "c1", "c2", "c3"),
                cell.values(topic, 2, "read_committed").stream().sorted().toList());
        Cell.equal(12, cell.values(topic, 2, "read_uncommitted").size());
    }

    static void zombie(Cell cell) throws Exception {
        String topic = cell.topic(1);
        try (KafkaProducer<String, String> old = cell.producer("transactional.id", cell.name);
                KafkaProducer<String, String> successor = cell.producer("transactional.id", cell.name)) {
            old.initTransactions();
            old.beginTransaction();
            old.send(new ProducerRecord<>(topic, 0, null, "zombie")).get();
            successor.initTransactions();
            KafkaException fenced = Cell.fails(KafkaException.class, () -> {
                old.send(new ProducerRecord<>(topic, 0, null, "too late"));
                old.commitTransaction();
                return null;
            });
            Throwable reason = fenced;
            while (reason != null && !(reason instanceof ProducerFencedException)
                    && !(reason instanceof InvalidProducerEpochException)) {
                reason = reason.getCause();
            }
            Cell.check(reason != null, "not fenced but " + fenced);
            successor.beginTransaction();
            successor.send(new ProducerRecord<>(topic, 0, null, "successor"));
            successor.commitTransaction();
        }
        cell.decided(topic, 1);
        Cell.equal(List.of("successor"), cell.values(topic, 1, "read_committed"));
    }

    /** Offsets by time and at both ends, committed ones, and positions after a seek. */
    static void offsets(Cell cell) throws Exception {
        String topic = cell.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = cell.producer()) {
            for (int i = 0; i < 10; i++) {
                producer.send(new ProducerRecord<>(topic, 0, 1000L * i, null, String.valueOf(i)));
            }
        }
        try (KafkaConsumer<String, String> consumer = cell.consumer("group.id", cell.name)) {
            consumer.assign(List.of(partition));
            Cell.equal(0L, consumer.beginningOffsets(List.of(partition)).get(partition));
            Cell.equal(10L, consumer.endOffsets(List.of(partition)).get(partition));
            Cell.equal(4L, consumer.offsetsForTimes(Map.of(partition, 3500L)).get(partition).offset());
            Cell.equal(null, consumer.offsetsForTimes(Map.of(partition, 99000L)).get(partition));
            Cell.equal(null, consumer.committed(java.util.Set.of(partition)).get(partition));
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(7, "note")));
            Cell.equal(new OffsetAndMetadata(7, "note"), consumer.committed(java.util.Set.of(partition)).get(partition));
            consumer.seek(partition, 8);
            List<String> found = new ArrayList<>();
            Cell.until("record after a seek", () -> {
                consumer.poll(Cell.POLL).forEach(each -> found.add(each.value()));
                return found.size() >= 2;
            });
            Cell.equal(List.of("8", "9"), found);
        }
    }
}
