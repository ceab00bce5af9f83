import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterPartitionReassignmentsOptions;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.NoReassignmentInProgressException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/** What Kafka's Admin client asks and changes. */
final class Admins {
    static void register(Map<String, Main.Scenario> all) {
        all.put("topics", Admins::topics);
        all.put("configs", Admins::configs);
        all.put("config-lists", Admins::configLists);
        all.put("group-configs", Admins::groupConfigs);
        all.put("groups", Admins::groups);
        all.put("group-offsets", Admins::groupOffsets);
        all.put("records", Admins::records);
        all.put("cluster", Admins::cluster);
        all.put("reassignments", Admins::reassignments);
        all.put("open-transactions", Admins::openTransactions);
    }

    static void topics(Cell cell) throws Exception {
        try (Admin admin = cell.admin()) {
            NewTopic wanted = new NewTopic(cell.name, 3, (short) 1).configs(Map.of("retention.ms", "60000"));
            var tried = admin.createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(true));
            Cell.equal(3, Cell.get(tried.numPartitions(cell.name)));
            Cell.check(!Cell.get(admin.listTopics().names()).contains(cell.name), "validateOnly created it");
            var created = admin.createTopics(List.of(wanted));
            Cell.equal("60000", Cell.get(created.config(cell.name)).get("retention.ms").value());
            Uuid id = Cell.get(created.topicId(cell.name));
            Cell.fails(TopicExistsException.class, () -> Cell.get(admin.createTopics(List.of(wanted)).all()));
            Cell.fails(InvalidTopicException.class,
                    () -> Cell.get(admin.createTopics(List.of(new NewTopic("a/b", 1, (short) 1))).all()));
            Cell.fails(InvalidPartitionsException.class,
                    () -> Cell.get(admin.createTopics(List.of(new NewTopic(cell.name + "0", 0, (short) 1))).all()));
            Cell.fails(InvalidConfigurationException.class, () -> Cell.get(admin.createTopics(List.of(
                    new NewTopic(cell.name + "c", 1, (short) 1).configs(Map.of("retention.ms", "soon")))).all()));
            TopicDescription found = Cell.get(admin.describeTopics(List.of(cell.name)).allTopicNames()).get(cell.name);
            Cell.equal(id, found.topicId());
            Cell.equal(3, found.partitions().size());
            Cell.equal(1, found.partitions().get(2).isr().size());
            Cell.equal(cell.name, Cell.get(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds())
                    .get(id).name());
            Cell.fails(UnknownTopicOrPartitionException.class,
                    () -> Cell.get(admin.describeTopics(List.of(cell.name + "-none")).allTopicNames()));
            Cell.get(admin.createPartitions(Map.of(cell.name, NewPartitions.increaseTo(5))).all());
            Cell.until("five partitions", () -> Cell.get(admin.describeTopics(List.of(cell.name)).allTopicNames())
                    .get(cell.name).partitions().size() == 5);
            Cell.fails(InvalidPartitionsException.class,
                    () -> Cell.get(admin.createPartitions(Map.of(cell.name, NewPartitions.increaseTo(4))).all()));
            Cell.get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
            Cell.until("deletion", () -> !Cell.get(admin.listTopics().names()).contains(cell.name));
            Cell.fails(UnknownTopicOrPartitionException.class,
                    () -> Cell.get(admin.deleteTopics(List.of(cell.name)).all()));
        }
    }

    private static Config config(Admin admin, ConfigResource resource) throws Exception {
        return Cell.get(admin.describeConfigs(List.of(resource)).all()).get(resource);
    }

    private static void alter(Admin admin, ConfigResource resource, String key, String value, AlterConfigOp.OpType how)
            throws Exception {
        Cell.get(admin.incrementalAlterConfigs(
                Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry(key, value), how)))).all());
    }

    static void configs(Cell cell) throws Exception {
        cell.topic(1);
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, cell.name);
        try (Admin admin = cell.admin()) {
            Cell.check(config(admin, topic).get("retention.ms").isDefault(), "retention.ms is no default");
            alter(admin, topic, "retention.ms", "120000", AlterConfigOp.OpType.SET);
            ConfigEntry changed = config(admin, topic).get("retention.ms");
            Cell.equal("120000", changed.value());
            Cell.equal(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, changed.source());
            alter(admin, topic, "retention.ms", null, AlterConfigOp.OpType.DELETE);
            Cell.equal("604800000", config(admin, topic).get("retention.ms").value());
            Cell.fails(InvalidConfigurationException.class, () -> {
                alter(admin, topic, "retention.ms", "soon", AlterConfigOp.OpType.SET);
                return "set";
            });
            String node = Cell.get(admin.describeCluster().nodes()).iterator().next().idString();
            Cell.equal(node, config(admin, new ConfigResource(ConfigResource.Type.BROKER, node)).get("node.id").value());
            cell.produce(cell.name, 1, 0, 1); // nothing about the topic stops
        }
    }

    static void groupConfigs(Cell cell) throws Exception {
        try (Admin admin = cell.admin()) {
            ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, cell.name);
            alter(admin, group, "consumer.session.timeout.ms", "50000", AlterConfigOp.OpType.SET);
            Cell.equal("50000", config(admin, group).get("consumer.session.timeout.ms").value());
            Cell.equal(ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG,
                    config(admin, group).get("consumer.session.timeout.ms").source());
            Cell.check(listed(admin, ConfigResource.Type.GROUP).contains(group), "the group's configuration is not listed");
            alter(admin, group, "consumer.heartbeat.interval.ms", "6000", AlterConfigOp.OpType.SET);
            for (String value : List.of("44999", "60001", "soon")) {
                Cell.fails(InvalidConfigurationException.class, () -> {
                    alter(admin, group, "consumer.session.timeout.ms", value, AlterConfigOp.OpType.SET);
                    return "set";
                });
            }
            alter(admin, group, "consumer.session.timeout.ms", null, AlterConfigOp.OpType.DELETE);
            Cell.equal("45000", config(admin, group).get("consumer.session.timeout.ms").value());
            Cell.equal("6000", config(admin, group).get("consumer.heartbeat.interval.ms").value());
            alter(admin, group, "consumer.heartbeat.interval.ms", null, AlterConfigOp.OpType.DELETE);
            Cell.check(!listed(admin, ConfigResource.Type.GROUP).contains(group), "a group without values is listed");
        }
    }

    private static java.util.Collection<ConfigResource> listed(Admin admin, ConfigResource.Type type) throws Exception {
        return Cell.get(admin.listConfigResources(
                Set.of(type), new org.apache.kafka.clients.admin.ListConfigResourcesOptions()).all());
    }

    /** Values are added to a setting that is a list, and taken from it. */
    static void configLists(Cell cell) throws Exception {
        cell.topic(1);
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, cell.name);
        try (Admin admin = cell.admin()) {
            alter(admin, topic, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
            Cell.equal(Set.of("delete", "compact"),
                    Set.of(config(admin, topic).get("cleanup.policy").value().split(",")));
            alter(admin, topic, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT);
            Cell.equal("compact", config(admin, topic).get("cleanup.policy").value());
            Cell.fails(InvalidConfigurationException.class, () -> {
                alter(admin, topic, "retention.ms", "5", AlterConfigOp.OpType.APPEND);
                return "appended";
            });
        }
    }

    /** Listed, described and deleted; the first argument is the group protocol. */
    static void groups(Cell cell) throws Exception {
        String topic = cell.topic(Groups.PARTITIONS);
        String protocol = cell.argument(0);
        boolean classic = protocol.equals("classic");
        try (Admin admin = cell.admin()) {
            Member member = new Member(cell.consumer(Cell.member(cell.name, protocol, "client.id", "its-id")), topic);
            Cell.until("share of one", () -> Groups.shared(member));
            GroupListing listed = Cell.get(admin.listGroups().all()).stream()
                    .filter(each -> each.groupId().equals(cell.name)).findFirst().orElseThrow();
            Cell.equal(Optional.of(classic ? GroupType.CLASSIC : GroupType.CONSUMER), listed.type());
            Cell.equal("consumer", listed.protocol());
            Cell.until("stable group", () -> description(admin, cell).groupState() == GroupState.STABLE);
            ConsumerGroupDescription found = description(admin, cell);
            Cell.equal(1, found.members().size());
            var only = found.members().iterator().next();
            Cell.equal("its-id", only.clientId());
            Cell.equal(member.owned, only.assignment().topicPartitions());
            Cell.equal(classic ? "range" : "uniform", found.partitionAssignor());
            Cell.fails(GroupNotEmptyException.class,
                    () -> Cell.get(admin.deleteConsumerGroups(List.of(cell.name)).all()));
            cell.produce(topic, Groups.PARTITIONS, 0, 40);
            Cell.until("record", () -> member.values.size() >= 40);
            Cell.until("committed offsets", () -> Cell.get(admin.listConsumerGroupOffsets(cell.name)
                    .partitionsToOffsetAndMetadata()).values().stream().mapToLong(OffsetAndMetadata::offset).sum() == 40);
            Cell.fails(GroupSubscribedToTopicException.class, () -> Cell.get(admin.deleteConsumerGroupOffsets(
                    cell.name, Set.of(new TopicPartition(topic, 0))).partitionResult(new TopicPartition(topic, 0))));
            member.close();
            Cell.equal(GroupState.EMPTY, description(admin, cell).groupState());
            Cell.get(admin.deleteConsumerGroups(List.of(cell.name)).all());
            Cell.check(Cell.get(admin.listGroups().all()).stream().noneMatch(each -> each.groupId().equals(cell.name)),
                    "the deleted group is listed");
            Cell.fails(GroupIdNotFoundException.class,
                    () -> Cell.get(admin.deleteConsumerGroups(List.of(cell.name)).all()));
            Cell.fails(GroupIdNotFoundException.class, () -> description(admin, cell));
        }
    }

    private static ConsumerGroupDescription description(Admin admin, Cell cell) throws Exception {
        return Cell.get(admin.describeConsumerGroups(List.of(cell.name)).all()).get(cell.name);
    }

    static void groupOffsets(Cell cell) throws Exception {
        TopicPartition partition = new TopicPartition(cell.topic(2), 0);
        TopicPartition other = new TopicPartition(cell.name, 1);
        try (Admin admin = cell.admin()) {
            Cell.get(admin.alterConsumerGroupOffsets(cell.name,
                    Map.of(partition, new OffsetAndMetadata(5, Optional.of(0), "note"),
                            other, new OffsetAndMetadata(6))).all());
            var found = Cell.get(admin.listConsumerGroupOffsets(cell.name).partitionsToOffsetAndMetadata());
            Cell.equal(5L, found.get(partition).offset());
            Cell.equal("note", found.get(partition).metadata());
            Cell.equal(6L, found.get(other).offset());
            Cell.get(admin.deleteConsumerGroupOffsets(cell.name, Set.of(partition)).all());
            Cell.equal(Set.of(other),
                    Cell.get(admin.listConsumerGroupOffsets(cell.name).partitionsToOffsetAndMetadata()).keySet());
            Member member = new Member(cell.consumer(Cell.member(cell.name, "classic")), cell.name);
            Cell.until("share of one", () -> member.owned.size() == 2);
            Cell.fails(KafkaException.class, () -> Cell.get(
                    admin.alterConsumerGroupOffsets(cell.name, Map.of(partition, new OffsetAndMetadata(1))).all()));
            Cell.get(admin.removeMembersFromConsumerGroup(cell.name, new RemoveMembersFromConsumerGroupOptions()).all());
            Cell.until("share of the member that came back", () -> member.rebalances.get() >= 2
                    && member.owned.size() == 2);
            member.close();
        }
    }

    static void records(Cell cell) throws Exception {
        TopicPartition partition = new TopicPartition(cell.topic(1), 0);
        try (Admin admin = cell.admin(); KafkaProducer<String, String> producer = cell.producer()) {
            for (int i = 0; i < 10; i++) {
                producer.send(new ProducerRecord<>(cell.name, 0, i == 4 ? 9_000L : 1_000L + i, null, "v" + i));
                producer.flush();
            }
            Cell.equal(0L, offset(admin, partition, OffsetSpec.earliest()));
            Cell.equal(10L, offset(admin, partition, OffsetSpec.latest()));
            Cell.equal(4L, offset(admin, partition, OffsetSpec.maxTimestamp()));
            Cell.equal(3L, offset(admin, partition, OffsetSpec.forTimestamp(1_003)));
            Cell.equal(-1L, offset(admin, partition, OffsetSpec.forTimestamp(99_000)));
            Cell.equal(0L, offset(admin, partition, OffsetSpec.earliestLocal()));
            Cell.equal(-1L, offset(admin, partition, OffsetSpec.latestTiered()));
            Cell.equal(3L, Cell.get(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(3)))
                    .lowWatermarks().get(partition)).lowWatermark());
            Cell.equal(3L, offset(admin, partition, OffsetSpec.earliest()));
            Cell.equal("v3", cell.values(cell.name, 1, "read_committed").get(0));
            Cell.fails(OffsetOutOfRangeException.class, () -> Cell.get(
                    admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(11))).all()));
            Cell.equal(10L, Cell.get(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(-1)))
                    .lowWatermarks().get(partition)).lowWatermark());
            Cell.equal(List.of(), cell.values(cell.name, 1, "read_committed"));
        }
    }

    private static long offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        ListOffsetsResultInfo found = Cell.get(admin.listOffsets(Map.of(partition, spec)).all()).get(partition);
        return found.offset();
    }

    static void cluster(Cell cell) throws Exception {
        TopicPartition partition = new TopicPartition(cell.topic(1), 0);
        try (Admin admin = cell.admin()) {
            var nodes = Cell.get(admin.describeCluster().nodes());
            Cell.check(!nodes.isEmpty(), "no node");
            Cell.check(nodes.contains(Cell.get(admin.describeCluster().controller())), "the controller is no node");
            Cell.check(Cell.get(admin.describeCluster().clusterId()) != null, "no cluster id");
            FeatureMetadata features = Cell.get(admin.describeFeatures().featureMetadata());
            Cell.equal((short) 2, features.finalizedFeatures().get("transaction.version").maxVersionLevel());
            Cell.equal((short) 1, features.finalizedFeatures().get("group.version").maxVersionLevel());
            Integer node = nodes.iterator().next().id();
            Cell.check(!Cell.get(admin.describeLogDirs(List.of(node)).allDescriptions()).get(node).isEmpty(), "no folder");
            Cell.check(Cell.get(admin.describeMetadataQuorum().quorumInfo()).leaderId() >= 0, "no acting controller");
            Cell.equal(Map.of(), Cell.get(admin.describeClientQuotas(ClientQuotaFilter.all()).entities()));
            Cell.equal(Map.of(), Cell.get(admin.listPartitionReassignments().reassignments()));
            Optional<Throwable> election = Cell.get(
                    admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions()).get(partition);
            Cell.equal(ElectionNotNeededException.class, election.orElseThrow().getClass());
        }
    }

    /** Nothing moves: each case is refused, or asks for what is there already. */
    static void reassignments(Cell cell) throws Exception {
        TopicPartition partition = new TopicPartition(cell.topic(1), 0);
        TopicPartition missing = new TopicPartition(cell.name, 9);
        TopicPartition unknown = new TopicPartition(cell.name + "-none", 0);
        try (Admin admin = cell.admin()) {
            TopicDescription described = Cell.get(admin.describeTopics(List.of(cell.name)).allTopicNames()).get(cell.name);
            List<Integer> replicas = described.partitions().get(0).replicas().stream().map(node -> node.id()).toList();
            List<Integer> twice = List.of(replicas.get(0), replicas.get(0));
            List<Integer> stranger = List.of(99);
            var same = new AlterPartitionReassignmentsOptions().allowReplicationFactorChange(false);
            Cell.get(reassigned(admin, same, partition, replicas));
            var refused = InvalidReplicaAssignmentException.class;
            Cell.fails(refused, () -> Cell.get(reassigned(admin, same, partition, twice)));
            Cell.fails(refused, () -> Cell.get(reassigned(admin, same, partition, stranger)));
            Cell.fails(UnknownTopicOrPartitionException.class, () -> Cell.get(reassigned(admin, same, missing, replicas)));
            Cell.fails(UnknownTopicOrPartitionException.class, () -> Cell.get(reassigned(admin, same, unknown, replicas)));
            var none = admin.alterPartitionReassignments(Map.of(partition, Optional.empty()));
            Cell.fails(NoReassignmentInProgressException.class, () -> Cell.get(none.all()));
            List<Integer> brokers = Cell.get(admin.describeCluster().nodes()).stream().map(node -> node.id())
                    .filter(id -> id < 100).toList();
            if (brokers.size() > replicas.size() || replicas.size() > 1) {
                List<Integer> other = replicas.size() > 1 ? List.of(replicas.get(0)) : brokers.subList(0, replicas.size() + 1);
                Cell.fails(InvalidReplicationFactorException.class, () -> Cell.get(reassigned(admin, same, partition, other)));
            }
            Cell.equal(Map.of(), Cell.get(admin.listPartitionReassignments(Set.of(partition)).reassignments()));
            var elections = Cell.get(admin.electLeaders(
                    ElectionType.UNCLEAN, Set.of(partition, missing, unknown)).partitions());
            Cell.equal(ElectionNotNeededException.class, elections.get(partition).orElseThrow().getClass());
            for (TopicPartition each : List.of(missing, unknown)) {
                Cell.equal(UnknownTopicOrPartitionException.class, elections.get(each).orElseThrow().getClass());
            }
            for (ElectionType kind : ElectionType.values()) {
                var all = Cell.get(admin.electLeaders(kind, null).partitions());
                Cell.check(!all.containsKey(partition), "an election that is not needed is listed among all");
            }
        }
    }

    private static KafkaFuture<Void> reassigned(
            Admin admin, AlterPartitionReassignmentsOptions options, TopicPartition partition, List<Integer> replicas) {
        var target = Optional.of(new NewPartitionReassignment(replicas));
        return admin.alterPartitionReassignments(Map.of(partition, target), options).all();
    }

    static void openTransactions(Cell cell) throws Exception {
        TopicPartition partition = new TopicPartition(cell.topic(1), 0);
        try (Admin admin = cell.admin(); KafkaProducer<String, String> producer = cell.producer("transactional.id", cell.name)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(cell.name, 0, null, "open")).get();
            TransactionDescription found = Cell.get(admin.describeTransactions(List.of(cell.name)).description(cell.name));
            Cell.equal(TransactionState.ONGOING, found.state());
            Cell.equal(Set.of(partition), found.topicPartitions());
            var listed = Cell.get(admin.listTransactions().all()).stream()
                    .filter(each -> each.transactionalId().equals(cell.name)).findFirst().orElseThrow();
            Cell.equal(TransactionState.ONGOING, listed.state());
            Cell.equal(found.producerId(), listed.producerId());
            var active = Cell.get(admin.describeProducers(List.of(partition)).partitionResult(partition)).activeProducers();
            Cell.equal(1, active.size());
            Cell.equal(found.producerId(), active.get(0).producerId());
            Cell.equal(0L, active.get(0).currentTransactionStartOffset().getAsLong());
            Cell.fails(TransactionalIdNotFoundException.class, () -> Cell.get(
                    admin.describeTransactions(List.of(cell.name + "-none")).description(cell.name + "-none")));
            Cell.get(admin.fenceProducers(List.of(cell.name)).all());
            Cell.fails(KafkaException.class, () -> {
                producer.commitTransaction();
                return "committed";
            });
        }
        Cell.equal(List.of(), cell.values(cell.name, 1, "read_committed"));
    }
}
