package main

import (
	"slices"

	"github.com/IBM/sarama"
)

func text(value string) *string { return &value }

func topics(c *cell) {
	admin := c.admin()
	detail := &sarama.TopicDetail{
		NumPartitions: 3, ReplicationFactor: -1, ConfigEntries: map[string]*string{"retention.ms": text("60000")}}
	must(0, admin.CreateTopic(c.name, detail, false))
	fails(sarama.ErrTopicAlreadyExists, admin.CreateTopic(c.name, detail, false))
	fails(sarama.ErrInvalidTopic, admin.CreateTopic("a/b", detail, false))
	listed := must(admin.ListTopics())[c.name]
	equal(int32(3), listed.NumPartitions)
	equal("60000", *listed.ConfigEntries["retention.ms"])
	must(0, admin.CreatePartitions(c.name, 5, nil, false))
	c.until("five partitions", func() bool {
		return len(must(admin.DescribeTopics([]string{c.name}))[0].Partitions) == 5
	})
	must(0, admin.DeleteTopic(c.name))
	c.until("deletion", func() bool { _, found := must(admin.ListTopics())[c.name]; return !found })
	fails(sarama.ErrUnknownTopicOrPartition, admin.DeleteTopic(c.name))
}

func configs(c *cell) {
	admin := c.admin()
	c.topic(c.name, 1)
	value := func(key string) string {
		found := must(admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: c.name}))
		return found[slices.IndexFunc(found, func(each sarama.ConfigEntry) bool { return each.Name == key })].Value
	}
	must(0, admin.IncrementalAlterConfig(sarama.TopicResource, c.name, map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: text("120000")}}, false))
	c.until("changed value", func() bool { return value("retention.ms") == "120000" }) // another node may answer
	must(0, admin.AlterConfig(sarama.TopicResource, c.name, map[string]*string{"cleanup.policy": text("compact")}, false))
	c.until("other configuration", func() bool { return value("cleanup.policy") == "compact" })
	equal("604800000", value("retention.ms"))
	check(len(must(admin.DescribeConfig(sarama.ConfigResource{Type: sarama.BrokerResource, Name: "0"}))) > 0,
		"no broker's configuration")
}

func groups(c *cell) {
	admin := c.admin()
	c.topic(c.name, partitions)
	m := c.member("")
	c.until("share of one", shared(m))
	c.produce(c.name, partitions, 0, 40)
	c.until("record", have(numbers(0, 40), m))
	c.until("committed positions", func() bool {
		total := int64(0)
		for _, each := range must(admin.ListConsumerGroupOffsets(c.name, map[string][]int32{c.name: {0, 1, 2, 3}})).
			Blocks[c.name] {
			total += each.Offset
		}
		return total == 40
	})
	equal("consumer", must(admin.ListConsumerGroups())[c.name])
	described := must(admin.DescribeConsumerGroups([]string{c.name}))[0]
	equal("Stable", described.State)
	equal(1, len(described.Members))
	fails(sarama.ErrNonEmptyGroup, admin.DeleteConsumerGroup(c.name))
	m.leave()
	must(0, admin.DeleteConsumerGroup(c.name))
	fails(sarama.ErrGroupIDNotFound, admin.DeleteConsumerGroup(c.name))
}

func groupOffsets(c *cell) {
	admin := c.admin()
	c.topic(c.name, 2)
	committed := must(admin.AlterConsumerGroupOffsets(c.name, map[string]map[int32]sarama.OffsetAndMetadata{
		c.name: {0: {Offset: 5, LeaderEpoch: -1, Metadata: "note"}, 1: {Offset: 6, LeaderEpoch: -1}}}, nil))
	equal(sarama.ErrNoError, committed.Errors[c.name][0])
	found := must(admin.ListConsumerGroupOffsets(c.name, nil)).Blocks[c.name]
	equal(int64(5), found[0].Offset)
	equal("note", found[0].Metadata)
	equal(int64(6), found[1].Offset)
	must(0, admin.DeleteConsumerGroupOffset(c.name, c.name, 0))
	equal(1, len(must(admin.ListConsumerGroupOffsets(c.name, nil)).Blocks[c.name]))
}

func records(c *cell) {
	admin := c.admin()
	c.topic(c.name, 1)
	c.produce(c.name, 1, 0, 10)
	must(0, admin.DeleteRecords(c.name, map[int32]int64{0: 3}))
	client := must(sarama.NewClient([]string{c.bootstrap}, c.config()))
	c.keep(client)
	equal(int64(3), must(client.GetOffset(c.name, 0, sarama.OffsetOldest)))
	equal(int64(10), must(client.GetOffset(c.name, 0, sarama.OffsetNewest)))
	equal(int64(3), must(client.GetOffset(c.name, 0, 1)))
	equal(numbers(3, 10), c.read(c.name, sarama.ReadCommitted, 7))
	check(admin.DeleteRecords(c.name, map[int32]int64{0: 11}) != nil, "records beyond the end were deleted")
}

func cluster(c *cell) {
	admin := c.admin()
	c.topic(c.name, 1)
	brokers, controller, err := admin.DescribeCluster()
	must(0, err)
	check(slices.ContainsFunc(brokers, func(each *sarama.Broker) bool { return each.ID() == controller }),
		"the controller is no node")
	folders := must(admin.DescribeLogDirs([]int32{0}))[0]
	equal(1, len(folders))
	reassigned := must(admin.ListPartitionReassignments(c.name, []int32{0}))
	equal(0, len(reassigned))
	replicas := must(admin.DescribeTopics([]string{c.name}))[0].Partitions[0].Replicas
	must(0, admin.AlterPartitionReassignments(c.name, [][]int32{replicas}))
	elected := must(admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{c.name: {0}}))
	equal(sarama.ErrElectionNotNeeded, elected[c.name][0].ErrorCode)
}
