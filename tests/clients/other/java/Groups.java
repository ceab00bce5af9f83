import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Members that come and go. The first argument is the group protocol. */
final class Groups {
    static final int PARTITIONS = 4;

    static void register(Map<String, Main.Scenario> all) {
        all.put("members", Groups::members);
        all.put("eager", cell -> shareComeAndGo(cell, "partition.assignment.strategy", RangeAssignor.class.getName()));
        all.put("regex", Groups::regex);
        all.put("migration", Groups::migration);
        all.put("late", Groups::late);
    }

    static boolean shared(Member... members) {
        Set<TopicPartition> all = new HashSet<>();
        int count = 0;
        for (Member member : members) {
            if (member.failure != null) {
                throw new IllegalStateException(member.failure);
            }
            if (member.owned.isEmpty()) {
                return false;
            }
            all.addAll(member.owned);
            count += member.owned.size();
        }
        return count == PARTITIONS && all.size() == PARTITIONS;
    }

    static List<String> numbers(int first, int end) {
        return IntStream.range(first, end).mapToObj(String::valueOf).toList();
    }

    static void members(Cell cell) throws Exception {
        if (cell.argument(0).equals("classic")) {
            shareComeAndGo(cell, "partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        } else {
            shareComeAndGo(cell);
        }
    }

    private static void shareComeAndGo(Cell cell, Object... settings) throws Exception {
        String topic = cell.topic(PARTITIONS);
        Object[] all = Cell.member(cell.name, cell.argument(0), settings);
        cell.produce(topic, PARTITIONS, 0, 100);
        try (Member first = new Member(cell.consumer(all), topic)) {
            Cell.until("share of one", () -> shared(first));
            Cell.until("record", () -> first.values.containsAll(numbers(0, 100)));
            Member second = new Member(cell.consumer(all), topic);
            Cell.until("share of two", () -> shared(first, second));
            cell.produce(topic, PARTITIONS, 100, 200);
            Cell.until("record of two", () -> {
                Set<String> both = new HashSet<>(first.values);
                both.addAll(second.values);
                return both.containsAll(numbers(100, 200));
            });
            Cell.check(second.values.stream().noneMatch(each -> Integer.parseInt(each) < 100),
                    "the second member read again what the first had committed");
            second.close();
            Cell.until("share of the one that is left", () -> shared(first));
        }
    }

    /** A topic created later that matches is read as well, one that does not is not. */
    static void regex(Cell cell) throws Exception {
        String protocol = cell.argument(0);
        cell.topic(cell.name + "-a", PARTITIONS);
        Object[] all = Cell.member(cell.name, protocol, "metadata.max.age.ms", 500);
        String pattern = cell.name + "-[a-c]";
        try (Member member = new Member(cell.consumer(all), self -> {
            if (protocol.equals("consumer")) {
                self.consumer().subscribe(new SubscriptionPattern(pattern), self.listener());
            } else {
                self.consumer().subscribe(Pattern.compile(pattern), self.listener());
            }
        })) {
            Cell.until("share of one", () -> shared(member));
            cell.topic(cell.name + "-x", 1);
            cell.topic(cell.name + "-b", 1);
            TopicPartition awaited = new TopicPartition(cell.name + "-b", 0);
            Cell.until("partition of a new topic", () -> member.owned.contains(awaited));
            Cell.equal(PARTITIONS + 1, member.owned.size());
        }
    }

    /** A group goes online from the classic to the consumer protocol and back. */
    static void migration(Cell cell) throws Exception {
        String topic = cell.topic(PARTITIONS);
        String cooperative = CooperativeStickyAssignor.class.getName();
        Object[] classic = Cell.member(cell.name, "classic", "partition.assignment.strategy", cooperative);
        cell.produce(topic, PARTITIONS, 0, 40);
        List<String> found = new ArrayList<>();
        Member old = new Member(cell.consumer(classic), topic);
        Cell.until("share of the classic member", () -> shared(old) && old.values.size() >= 40);
        Member young = new Member(cell.consumer(Cell.member(cell.name, "consumer")), topic);
        Cell.until("share of both", () -> shared(old, young));
        cell.produce(topic, PARTITIONS, 40, 80);
        Cell.until("record of both", () -> old.values.size() + young.values.size() >= 80);
        old.close();
        Cell.until("share of the new member", () -> shared(young));
        Member back = new Member(cell.consumer(classic), topic);
        Cell.until("share of a classic member that came back", () -> shared(young, back));
        young.close();
        Cell.until("share of the classic member alone", () -> shared(back));
        cell.produce(topic, PARTITIONS, 80, 120);
        Cell.until("record after the way back",
                () -> old.values.size() + young.values.size() + back.values.size() >= 120);
        back.close();
        for (Member member : List.of(old, young, back)) {
            found.addAll(member.values);
        }
        Cell.equal(numbers(0, 120), found.stream().sorted((a, b) -> Integer.parseInt(a) - Integer.parseInt(b)).toList());
    }

    /** A member that polls too late has lost its partitions: neither it nor its transaction can commit. */
    static void late(Cell cell) throws Exception {
        String topic = cell.topic(PARTITIONS);
        cell.produce(topic, PARTITIONS, 0, 40);
        Object[] all = Cell.member(cell.name, cell.argument(0));
        Object[] hasty = Cell.member(cell.name, cell.argument(0), "max.poll.interval.ms", 2000);
        try (KafkaConsumer<String, String> late = cell.consumer(hasty);
                KafkaProducer<String, String> producer = cell.producer("transactional.id", cell.name)) {
            late.subscribe(List.of(topic));
            Cell.until("share of one", () -> {
                late.poll(Cell.POLL);
                return late.assignment().size() == PARTITIONS;
            });
            ConsumerGroupMetadata stale = late.groupMetadata();
            try (Member prompt = new Member(cell.consumer(all), topic)) {
                Cell.until("share of the one that polls", () -> shared(prompt));
                TopicPartition partition = new TopicPartition(topic, 0);
                Map<TopicPartition, OffsetAndMetadata> position = Map.of(partition, new OffsetAndMetadata(1));
                Cell.fails(CommitFailedException.class, () -> {
                    late.commitSync(position, Duration.ofSeconds(30));
                    return "committed";
                });
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, "1000"));
                Cell.fails(CommitFailedException.class, () -> {
                    producer.sendOffsetsToTransaction(position, stale);
                    producer.commitTransaction();
                    return "committed in a transaction";
                });
                producer.abortTransaction();
                Cell.until("record", () -> prompt.values.containsAll(numbers(0, 40)));
            }
        }
        cell.decided(topic, PARTITIONS);
        Cell.equal(40, cell.values(topic, PARTITIONS, "read_committed").size());
    }
}
