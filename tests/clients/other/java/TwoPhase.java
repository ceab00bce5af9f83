import java.lang.reflect.Field;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.internals.Sender;
import org.apache.kafka.clients.producer.internals.TransactionManager;
import org.apache.kafka.clients.producer.internals.TransactionalRequestResult;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TransactionalIdAuthorizationException;
import org.apache.kafka.common.message.InitProducerIdRequestData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.InitProducerIdRequest;
import org.apache.kafka.common.utils.ProducerIdAndEpoch;

/**
 * Two-phase commit (KIP-939). The client of Kafka 4.3 has it inside, with prepared transactions and their identities, but
 * not in its public class, and does not send version 6 of InitProducerId. This does what its public methods will do.
 */
final class TwoPhase {
    private TwoPhase() {
    }

    static void register(Map<String, Main.Scenario> all) {
        all.put("two-phase", TwoPhase::outcomes);
        all.put("two-phase-off", TwoPhase::off);
        all.put("two-phase-prepare", TwoPhase::prepare);
        all.put("two-phase-complete", TwoPhase::complete);
    }

    /** A producer with initTransactions(keepPreparedTxn), prepareTransaction() and what it has prepared. */
    static final class Participant implements AutoCloseable {
        final KafkaProducer<String, String> producer;
        private final TransactionManager manager;
        private final Sender sender;

        Participant(Cell cell) throws Exception {
            producer = cell.producer("transactional.id", cell.name, "transaction.two.phase.commit.enable", true);
            manager = (TransactionManager) field(KafkaProducer.class, "transactionManager").get(producer);
            sender = (Sender) field(KafkaProducer.class, "sender").get(producer);
        }

        Participant initTransactions(boolean keepPreparedTxn) throws Exception {
            TransactionalRequestResult result;
            synchronized (manager) { // the sender takes no request meanwhile
                result = manager.initializeTransactions(keepPreparedTxn);
                PriorityQueue<?> pending = (PriorityQueue<?>) field(TransactionManager.class, "pendingRequests").get(manager);
                Object handler = pending.peek();
                InitProducerIdRequest.Builder builder =
                        (InitProducerIdRequest.Builder) field(handler.getClass(), "builder").get(handler);
                InitProducerIdRequestData data = builder.data;
                data.setEnable2Pc(true).setKeepPreparedTxn(keepPreparedTxn);
                field(AbstractRequest.Builder.class, "latestAllowedVersion")
                        .set(builder, ApiKeys.INIT_PRODUCER_ID.latestVersion(true));
            }
            sender.wakeup();
            result.await(60, TimeUnit.SECONDS, "initTransactions");
            manager.maybeUpdateTransactionV2Enabled(true);
            if (manager.isPrepared()) { // else it takes the transaction for an empty one, and ends nothing
                field(TransactionManager.class, "transactionStarted").set(manager, true);
            }
            return this;
        }

        ProducerIdAndEpoch prepareTransaction() {
            producer.flush();
            manager.prepareTransaction();
            return manager.preparedTransactionState();
        }

        boolean isPrepared() {
            return manager.isPrepared();
        }

        ProducerIdAndEpoch prepared() {
            return manager.preparedTransactionState();
        }

        void completeTransaction(ProducerIdAndEpoch decided) {
            if (decided.equals(prepared())) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }

        void write(Cell cell, String value) {
            producer.beginTransaction();
            for (int partition = 0; partition < 2; partition++) {
                producer.send(new ProducerRecord<>(cell.name, partition, null, value));
            }
            try (KafkaConsumer<String, String> consumer = cell.consumer("group.id", cell.name)) {
                producer.sendOffsetsToTransaction(Map.of(
                        new TopicPartition(cell.name, 0), new OffsetAndMetadata(value.length())), consumer.groupMetadata());
            }
        }

        @Override
        public void close() {
            producer.close();
        }
    }

    private static Field field(Class<?> of, String name) throws Exception {
        for (Class<?> each = of; ; each = each.getSuperclass()) {
            try {
                Field field = each.getDeclaredField(name);
                field.setAccessible(true);
                return field;
            } catch (NoSuchFieldException missing) {
                if (each == Object.class) {
                    throw missing;
                }
            }
        }
    }

    /** Both outcomes, by the producer and by its successor; what the successor sees; and who can end nothing any more. */
    static void outcomes(Cell cell) throws Exception {
        cell.topic(2);
        try (Participant first = new Participant(cell).initTransactions(true)) {
            Cell.check(!first.isPrepared(), "nothing is open, but something is kept");
            first.write(cell, "one");
            ProducerIdAndEpoch prepared = first.prepareTransaction();
            first.completeTransaction(prepared);
            first.write(cell, "two");
            ProducerIdAndEpoch kept = first.prepareTransaction();
            Cell.check(!kept.equals(prepared), "two transactions under one name");
            try (Participant second = new Participant(cell).initTransactions(true);
                    Participant third = new Participant(cell).initTransactions(true); Admin admin = cell.admin()) {
                Cell.check(second.isPrepared() && third.isPrepared(), "not kept");
                Cell.equal(kept, second.prepared());
                Cell.equal(kept, third.prepared());
                for (Participant zombie : List.of(first, second)) {
                    Cell.fails(KafkaException.class, () -> {
                        zombie.producer.commitTransaction();
                        return null;
                    });
                }
                TransactionDescription described = Cell.get(admin.describeTransactions(List.of(cell.name))
                        .description(cell.name));
                Cell.equal(TransactionState.ONGOING, described.state());
                Cell.equal((long) Integer.MAX_VALUE, described.transactionTimeoutMs());
                Cell.equal(kept.producerId, described.producerId());
                Cell.equal((int) kept.epoch, described.producerEpoch());
                third.completeTransaction(prepared); // the other system has only committed the first one
                third.write(cell, "three");
                third.producer.commitTransaction();
                third.write(cell, "four");
                third.prepareTransaction();
                admin.fenceProducers(List.of(cell.name)).all().get(60, TimeUnit.SECONDS);
                Cell.fails(KafkaException.class, () -> {
                    third.producer.commitTransaction();
                    return null;
                });
            }
        }
        try (Participant last = new Participant(cell).initTransactions(true)) {
            Cell.check(!last.isPrepared(), "fencing has aborted it");
        }
        check(cell, List.of("one", "three"));
    }

    static void off(Cell cell) throws Exception {
        try (Participant refused = new Participant(cell)) {
            Cell.fails(TransactionalIdAuthorizationException.class, () -> refused.initTransactions(false));
        }
    }

    /** Tells what it has prepared, then waits to be killed. */
    static void prepare(Cell cell) throws Exception {
        Participant producer = new Participant(cell).initTransactions(true);
        Cell.check(!producer.isPrepared(), "something is left");
        producer.write(cell, cell.argument(0));
        ProducerIdAndEpoch prepared = producer.prepareTransaction();
        Cell.at((int) prepared.producerId);
        Cell.at(prepared.epoch);
        Thread.sleep(TimeUnit.MINUTES.toMillis(5));
    }

    /** PRODUCER_ID EPOCH of what the other system has committed last, then the values that count. */
    static void complete(Cell cell) throws Exception {
        ProducerIdAndEpoch decided = new ProducerIdAndEpoch(
                Long.parseLong(cell.argument(0)), Short.parseShort(cell.argument(1)));
        try (Participant producer = new Participant(cell).initTransactions(true)) {
            Cell.check(producer.isPrepared(), "nothing was kept");
            producer.completeTransaction(decided);
        }
        check(cell, List.of(cell.argument(2).split(",")));
    }

    private static void check(Cell cell, List<String> expected) throws Exception {
        Cell.until("markers", () -> cell.read(cell.name, 2, "read_committed").size() >= 2 * expected.size());
        for (int partition = 0; partition < 2; partition++) {
            int chosen = partition;
            Cell.equal(expected, cell.read(cell.name, 2, "read_committed").stream()
                    .filter(each -> each.partition() == chosen).map(each -> each.value()).toList());
        }
        try (Admin admin = cell.admin()) {
            long committed = Cell.get(admin.listConsumerGroupOffsets(cell.name).partitionsToOffsetAndMetadata())
                    .get(new TopicPartition(cell.name, 0)).offset();
            Cell.equal((long) expected.get(expected.size() - 1).length(), committed);
        }
    }
}
