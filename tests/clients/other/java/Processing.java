import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

/** Consume-process-produce by a group: every input becomes one output, whatever moves or dies meanwhile. */
final class Processing {
    private static final int RECORDS = 400;
    private static final int FAILURES_AT_MOST = 100;
    private static final int ABANDONED_MS = 3000;

    static void register(Map<String, Main.Scenario> all) {
        all.put("process", Processing::process);
    }

    static void process(Cell cell) throws Exception {
        String source = cell.topic(cell.name + "-in", Groups.PARTITIONS);
        String target = cell.topic(cell.name + "-out", 2);
        cell.produce(source, Groups.PARTITIONS, 0, RECORDS);
        List<Worker> workers = new ArrayList<>();
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> reader = cell.consumer()) {
            reader.assign(List.of(new TopicPartition(target, 0), new TopicPartition(target, 1)));
            int joined = 0;
            for (int threshold = 0; threshold <= RECORDS; threshold += 50) {
                int awaited = threshold;
                Cell.until("output " + awaited, () -> {
                    reader.poll(Cell.POLL).forEach(each -> found.add(each.value()));
                    return found.size() >= awaited || failed(workers);
                });
                Cell.at(awaited);
                if (joined < 4) { // a member joins, and the oldest ends inside a transaction
                    workers.add(new Worker(cell, source, target, joined++));
                    if (joined > 2) {
                        workers.remove(0).abandon();
                    }
                }
            }
        } finally {
            for (Worker worker : workers) {
                worker.stop();
            }
        }
        for (Worker worker : workers) {
            if (worker.failure != null) {
                throw new IllegalStateException(worker.failure);
            }
        }
        cell.decided(target, 2);
        Cell.equal(Groups.numbers(0, RECORDS), cell.values(target, 2, "read_committed").stream()
                .sorted((a, b) -> Integer.parseInt(a) - Integer.parseInt(b)).toList());
    }

    private static boolean failed(List<Worker> workers) {
        return workers.stream().anyMatch(worker -> worker.failure != null);
    }

    private static final class Worker implements Runnable {
        volatile Throwable failure;
        private final Cell cell;
        private final String source;
        private final String target;
        private final int number;
        private final Thread thread;
        private volatile boolean stopped;
        private volatile boolean abandoned;

        Worker(Cell cell, String source, String target, int number) {
            this.cell = cell;
            this.source = source;
            this.target = target;
            this.number = number;
            thread = new Thread(this);
            thread.start();
        }

        void stop() throws Exception {
            stopped = true;
            thread.join(60_000);
            Cell.check(!thread.isAlive(), "a worker hangs");
        }

        void abandon() throws Exception {
            abandoned = true;
            stop();
        }

        @Override
        public void run() {
            int failures = 0;
            while (!stopped) {
                try {
                    work();
                } catch (KafkaException thrown) { // goes on from the committed positions with new clients
                    if (++failures > FAILURES_AT_MOST) {
                        failure = thrown;
                        return;
                    }
                } catch (Throwable thrown) {
                    failure = thrown;
                    return;
                }
            }
        }

        private void work() {
            Object[] settings = Cell.member(cell.name, cell.argument(0), "max.poll.records", 10);
            try (KafkaProducer<String, String> producer = cell.producer("transactional.id",
                    cell.name + number, "transaction.timeout.ms", ABANDONED_MS);
                    KafkaConsumer<String, String> consumer = cell.consumer(settings)) {
                producer.initTransactions();
                consumer.subscribe(List.of(source));
                while (!stopped) {
                    ConsumerRecords<String, String> records = consumer.poll(Cell.POLL);
                    if (records.isEmpty()) {
                        continue;
                    }
                    producer.beginTransaction();
                    Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
                    for (ConsumerRecord<String, String> record : records) {
                        int partition = Integer.parseInt(record.value()) % 2;
                        producer.send(new ProducerRecord<>(target, partition, record.key(), record.value()));
                        positions.put(new TopicPartition(source, record.partition()),
                                new OffsetAndMetadata(record.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
                    if (abandoned) {
                        return; // the transaction stays open until it times out
                    }
                    producer.commitTransaction();
                }
            }
        }
    }
}
