import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Producing, with idempotence and in transactions, and reading without a group. */
final class Records {
    static void register(Map<String, Main.Scenario> all) {
        all.put("idempotent", Records::idempotent);
        all.put("contents", Records::contents);
        all.put("transactions", Records::transactions);
        all.put("zombie", Records::zombie);
        all.put("offsets", Records::offsets);
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
