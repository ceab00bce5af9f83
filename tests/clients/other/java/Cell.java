import java.io.FileReader;
import java.io.IOException;
import java.io.PrintStream;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** One scenario's cluster, unique name and arguments, and the clients it makes. */
final class Cell {
    static final Duration POLL = Duration.ofMillis(100);
    static final long PATIENCE_S = 90;
    static PrintStream progress;

    final String bootstrap;
    final String name;
    private final String[] words;

    Cell(String[] words) {
        this.words = words;
        this.bootstrap = words[1];
        this.name = words[2];
    }

    String argument(int index) {
        return words[3 + index];
    }

    static void at(int number) {
        progress.println("at " + number);
        progress.flush();
    }

    Admin admin() {
        return Admin.create(new HashMap<>(reaching()));
    }

    /** What every client needs to reach the cluster; the file that CLIENT_CONFIG names may have more than addresses. */
    private Map<String, Object> reaching() {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        String file = System.getenv("CLIENT_CONFIG");
        if (file != null) {
            Properties settings = new Properties();
            try (Reader reader = new FileReader(file)) {
                settings.load(reader);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            settings.forEach((name, value) -> all.put((String) name, value));
        }
        return all;
    }

    String topic(int partitions) throws Exception {
        return topic(name, partitions);
    }

    String topic(String topic, int partitions) throws Exception {
        try (Admin admin = admin()) {
            // As many replicas as the cluster's default has.
            get(admin.createTopics(List.of(new NewTopic(topic, java.util.Optional.of(partitions),
                    java.util.Optional.empty()))).all());
        }
        return topic;
    }

    KafkaProducer<String, String> producer(Object... settings) {
        Map<String, Object> all = reaching();
        all.putAll(Map.of("key.serializer", StringSerializer.class, "value.serializer", StringSerializer.class));
        put(all, settings);
        return new KafkaProducer<>(all);
    }

    KafkaConsumer<String, String> consumer(Object... settings) {
        Map<String, Object> all = reaching();
        all.putAll(Map.of("key.deserializer", StringDeserializer.class, "value.deserializer", StringDeserializer.class,
                "auto.offset.reset", "earliest", "enable.auto.commit", false, "isolation.level", "read_committed"));
        put(all, settings);
        return new KafkaConsumer<>(all);
    }

    /** Settings of a member whose absence is noticed soon; the consumer protocol's are the group's. */
    static Object[] member(String group, String protocol, Object... settings) {
        List<Object> all = new ArrayList<>(List.of("group.id", group, "group.protocol", protocol));
        if (protocol.equals("classic")) {
            all.addAll(List.of("session.timeout.ms", 6000, "heartbeat.interval.ms", 300));
        }
        all.addAll(List.of(settings));
        return all.toArray();
    }

    private static void put(Map<String, Object> all, Object... settings) {
        for (int i = 0; i < settings.length; i += 2) {
            all.put((String) settings[i], settings[i + 1]);
        }
    }

    /** Sends value `first` up to `end`, each to the partition of its number, with idempotence. */
    void produce(String topic, int partitions, int first, int end) throws Exception {
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = first; i < end; i++) {
                producer.send(new ProducerRecord<>(topic, i % partitions, "k" + i, String.valueOf(i)));
            }
            producer.flush();
        }
    }

    /** All records up to the end that the isolation level shows, in offset order for each partition. */
    List<ConsumerRecord<String, String>> read(String topic, int partitions, String isolation) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer("isolation.level", isolation)) {
            List<TopicPartition> all = new ArrayList<>();
            for (int partition = 0; partition < partitions; partition++) {
                all.add(new TopicPartition(topic, partition));
            }
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            until("end of " + topic, () -> {
                consumer.poll(POLL).forEach(found::add);
                return all.stream().allMatch(each -> consumer.position(each) >= ends.get(each));
            });
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
        return found;
    }

    /** Waits until no transaction is open: a commit is answered once it is certain, and shown to readers by its markers. */
    void decided(String topic, int partitions) throws Exception {
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        try (KafkaConsumer<String, String> written = consumer("isolation.level", "read_uncommitted");
                KafkaConsumer<String, String> shown = consumer("isolation.level", "read_committed")) {
            Map<TopicPartition, Long> ends = written.endOffsets(all);
            until("end of the transactions of " + topic, () -> {
                Map<TopicPartition, Long> stable = shown.endOffsets(all);
                return all.stream().allMatch(each -> stable.get(each) >= ends.get(each));
            });
        }
    }

    List<String> values(String topic, int partitions, String isolation) {
        return read(topic, partitions, isolation).stream().map(ConsumerRecord::value).toList();
    }

    static void until(String what, Callable<Boolean> happened) throws Exception {
        long limit = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!happened.call()) {
            if (System.nanoTime() > limit) {
                throw new AssertionError("still no " + what);
            }
            Thread.sleep(5);
        }
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(60, TimeUnit.SECONDS);
    }

    static void equal(Object expected, Object found) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    static void check(boolean true_, String what) {
        if (!true_) {
            throw new AssertionError(what);
        }
    }

    /** The call fails with this error, bare or as the cause. */
    static <E extends Throwable> E fails(Class<E> kind, Callable<?> call) {
        Object answer;
        try {
            answer = call.call();
        } catch (Throwable failure) {
            Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
            if (kind.isInstance(cause)) {
                return kind.cast(cause);
            }
            throw new AssertionError("expected " + kind.getSimpleName() + ", got " + cause, failure);
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", got the answer " + answer);
    }
}
