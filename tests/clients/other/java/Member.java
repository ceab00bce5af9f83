import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** A member of a group that polls and commits in a thread of its own. */
final class Member implements AutoCloseable {
    final Set<TopicPartition> owned = ConcurrentHashMap.newKeySet();
    final ConcurrentLinkedQueue<String> values = new ConcurrentLinkedQueue<>();
    final AtomicInteger rebalances = new AtomicInteger();
    volatile Throwable failure;
    private final KafkaConsumer<String, String> consumer;
    private final Thread thread;
    private volatile boolean stopped;

    Member(KafkaConsumer<String, String> consumer, String topic) {
        this(consumer, (self) -> self.consumer.subscribe(List.of(topic), self.listener()));
    }

    Member(KafkaConsumer<String, String> consumer, Consumer<Member> subscribe) {
        this.consumer = consumer;
        subscribe.accept(this);
        thread = new Thread(this::run);
        thread.start();
    }

    KafkaConsumer<String, String> consumer() {
        return consumer;
    }

    ConsumerRebalanceListener listener() {
        return new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                owned.removeAll(partitions);
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                owned.addAll(partitions);
                rebalances.incrementAndGet();
            }
        };
    }

    private void run() {
        try (consumer) {
            while (!stopped) {
                var records = consumer.poll(Cell.POLL);
                records.forEach(each -> values.add(each.value()));
                if (!records.isEmpty()) {
                    consumer.commitAsync();
                }
            }
            consumer.commitSync();
        } catch (Throwable thrown) {
            failure = thrown;
        }
    }

    /** Waits until the member fails by itself. */
    Throwable failed() throws Exception {
        Cell.until("failure of a member", () -> failure != null);
        return failure;
    }

    @Override
    public void close() throws Exception {
        stopped = true;
        thread.join(60_000);
        Cell.check(!thread.isAlive(), "close() hangs");
        if (failure != null) {
            throw new IllegalStateException(failure);
        }
    }
}
