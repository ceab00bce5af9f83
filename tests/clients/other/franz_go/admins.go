package main

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func text(value string) *string { return &value }

func topics(c *cell) {
	admin := c.admin()
	must(0, must(admin.CreateTopics(c.ctx, 3, -1, map[string]*string{"retention.ms": text("60000")}, c.name)).Error())
	fails(kerr.TopicAlreadyExists, must(admin.CreateTopics(c.ctx, 3, -1, nil, c.name)).Error())
	fails(kerr.InvalidTopicException, must(admin.CreateTopics(c.ctx, 3, -1, nil, "a/b")).Error())
	listed := must(admin.ListTopics(c.ctx, c.name))[c.name]
	must(0, listed.Err)
	equal(3, len(listed.Partitions))
	must(0, must(admin.CreatePartitions(c.ctx, 2, c.name)).Error())
	c.until("five partitions", func() bool { return len(must(admin.ListTopics(c.ctx, c.name))[c.name].Partitions) == 5 })
	must(0, must(admin.DeleteTopics(c.ctx, c.name)).Error())
	c.until("deletion", func() bool { return !must(admin.ListTopics(c.ctx)).Has(c.name) })
	fails(kerr.UnknownTopicOrPartition, must(admin.DeleteTopics(c.ctx, c.name)).Error())
}

func configs(c *cell) {
	admin := c.admin()
	c.topic(c.name, 1)
	value := func(key string) string {
		found := must(must(admin.DescribeTopicConfigs(c.ctx, c.name)).On(c.name, nil))
		at := slices.IndexFunc(found.Configs, func(each kadm.Config) bool { return each.Key == key })
		return found.Configs[at].MaybeValue()
	}
	set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: text("120000")}}
	must(must(admin.AlterTopicConfigs(c.ctx, set, c.name)).On(c.name, nil))
	equal("120000", value("retention.ms"))
	must(must(admin.AlterTopicConfigsState(c.ctx, []kadm.AlterConfig{{Name: "cleanup.policy", Value: text("compact")}},
		c.name)).On(c.name, nil))
	equal("compact", value("cleanup.policy"))
	equal("604800000", value("retention.ms"))
	check(len(must(admin.DescribeBrokerConfigs(c.ctx))) > 0, "no broker's configuration")
}

// Listed, described and deleted; the first argument is the group protocol.
func groups(c *cell) {
	admin := c.admin()
	c.topic(c.name, partitions)
	m := c.join(c.member(c.arguments[0], kgo.ConsumeTopics(c.name))...)
	c.until("share of one", shared(m))
	c.produce(c.name, partitions, 0, 40)
	c.until("record", have(numbers(0, 40), m))
	c.until("committed positions", func() bool {
		total := int64(0)
		for _, offset := range must(admin.FetchOffsets(c.ctx, c.name))[c.name] {
			total += offset.At
		}
		return total == 40
	})
	equal("consumer", must(admin.ListGroups(c.ctx))[c.name].ProtocolType)
	if c.arguments[0] == "classic" {
		described := must(admin.DescribeGroups(c.ctx, c.name))[c.name]
		must(0, described.Err)
		equal("Stable", described.State)
		equal(partitions, len(described.AssignedPartitions()[c.name]))
		lag := must(admin.Lag(c.ctx, c.name))[c.name] // kadm knows that of classic groups alone
		must(0, lag.Error())
		equal(int64(0), lag.Lag.Total())
	} else {
		described := must(admin.DescribeConsumerGroups(c.ctx, c.name))[c.name]
		must(0, described.Err)
		equal("Stable", described.State)
		equal("uniform", described.AssignorName)
		equal(partitions, len(described.Members[0].Assignment[c.name]))
	}
	fails(kerr.NonEmptyGroup, must(admin.DeleteGroups(c.ctx, c.name)).Error())
	m.leave()
	must(0, must(admin.DeleteGroups(c.ctx, c.name)).Error())
	fails(kerr.GroupIDNotFound, must(admin.DeleteGroups(c.ctx, c.name)).Error())
}

func groupOffsets(c *cell) {
	admin := c.admin()
	c.topic(c.name, 2)
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: c.name, Partition: 0, At: 5, LeaderEpoch: -1, Metadata: "note"})
	offsets.Add(kadm.Offset{Topic: c.name, Partition: 1, At: 6, LeaderEpoch: -1})
	must(0, admin.CommitAllOffsets(c.ctx, c.name, offsets))
	found := must(admin.FetchOffsets(c.ctx, c.name))
	equal(int64(5), found[c.name][0].At)
	equal("note", found[c.name][0].Metadata)
	equal(int64(6), found[c.name][1].At)
	gone := kadm.TopicsSet{}
	gone.Add(c.name, 0)
	must(0, must(admin.DeleteOffsets(c.ctx, c.name, gone)).Error())
	equal(1, len(must(admin.FetchOffsets(c.ctx, c.name))[c.name]))
}

func records(c *cell) {
	admin := c.admin()
	c.topic(c.name, 1)
	c.produce(c.name, 1, 0, 10)
	before := kadm.Offsets{}
	before.AddOffset(c.name, 0, 3, -1)
	must(0, must(admin.DeleteRecords(c.ctx, before)).Error())
	start, _ := must(admin.ListStartOffsets(c.ctx, c.name)).Lookup(c.name, 0)
	equal(int64(3), start.Offset)
	equal(numbers(3, 10), c.read(c.name, kgo.ReadCommitted()))
	beyond := kadm.Offsets{}
	beyond.AddOffset(c.name, 0, 11, -1)
	fails(kerr.OffsetOutOfRange, must(admin.DeleteRecords(c.ctx, beyond)).Error())
	all := must(admin.ListOffsetsAfterMilli(c.ctx, 1, c.name))
	first, _ := all.Lookup(c.name, 0)
	equal(int64(3), first.Offset)
}

func openTransactions(c *cell) {
	admin := c.admin()
	c.topic(c.name, 1)
	producer := c.client(kgo.TransactionalID(c.name))
	must(0, producer.BeginTransaction())
	must(0, producer.ProduceSync(c.ctx, record(c.name, 1, 1)).FirstErr())
	described := must(admin.DescribeTransactions(c.ctx, c.name))[c.name]
	must(0, described.Err)
	equal("Ongoing", described.State)
	check(described.Topics.Lookup(c.name, 0), "the partition is missing")
	listed := must(admin.ListTransactions(c.ctx, nil, []string{"Ongoing"}))[c.name]
	equal(described.ProducerID, listed.ProducerID)
	partition := kadm.TopicsSet{}
	partition.Add(c.name, 0)
	producers := must(admin.DescribeProducers(c.ctx, partition)).SortedProducers()
	equal(1, len(producers))
	equal(described.ProducerID, producers[0].ProducerID)
	equal(int64(0), producers[0].CurrentTxnStartOffset)
	must(0, producer.EndTransaction(c.ctx, kgo.TryAbort))
	equal([]string{}, c.read(c.name, kgo.ReadCommitted()))
	brokers := must(admin.ListBrokers(c.ctx))
	check(len(brokers) > 0, "no broker")
}
