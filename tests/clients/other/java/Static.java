import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.UnreleasedInstanceIdException;

/** Static members. The first argument is the group protocol. */
final class Static {
    static void register(Map<String, Main.Scenario> all) {
        all.put("static", Static::restarts);
        all.put("instance", Static::twice);
    }

    private static Member member(Cell cell, String instance) {
        return new Member(cell.consumer(Cell.member(cell.name, cell.argument(0), "group.instance.id", instance)), cell.name);
    }

    /** It comes back to its partitions, and the other member notices nothing. */
    static void restarts(Cell cell) throws Exception {
        cell.topic(Groups.PARTITIONS);
        Member first = member(cell, "one");
        try (Member second = member(cell, "two")) {
            Cell.until("share of two", () -> Groups.shared(first, second));
            Set<TopicPartition> owned = new HashSet<>(first.owned);
            int rebalances = second.rebalances.get();
            first.close();
            try (Member again = member(cell, "one")) {
                Cell.until("share of the restarted one", () -> Groups.shared(again, second));
                Cell.equal(owned, again.owned);
                Cell.equal(rebalances, second.rebalances.get());
            }
        }
    }

    /** Of two with one instance id, the classic protocol fences the older, the consumer protocol refuses the younger. */
    static void twice(Cell cell) throws Exception {
        cell.topic(Groups.PARTITIONS);
        Member old = member(cell, "one");
        Cell.until("share of one", () -> Groups.shared(old));
        Member young = member(cell, "one");
        if (cell.argument(0).equals("classic")) {
            Cell.equal(FencedInstanceIdException.class, old.failed().getClass());
            Cell.until("share of the younger", () -> Groups.shared(young));
            young.close();
        } else {
            Cell.equal(UnreleasedInstanceIdException.class, young.failed().getClass());
            Cell.check(Groups.shared(old), "the older lost its partitions");
            old.close();
        }
    }
}
