package main

import (
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func idempotent(c *cell) {
	topic := c.topic(c.name, 2)
	c.produce(topic, 2, 0, 400)
	found := c.read(topic, kgo.ReadCommitted())
	equal(400, len(found))
	for parity := range 2 {
		expected := []string{}
		for i := parity; i < 400; i += 2 {
			expected = append(expected, strconv.Itoa(i))
		}
		equal(expected, slices.DeleteFunc(slices.Clone(found), func(value string) bool {
			return must(strconv.Atoi(value))%2 != parity
		}))
	}
}

func transactions(c *cell) {
	topic := c.topic(c.name, 2)
	client := c.client(kgo.TransactionalID(c.name))
	for round := range 3 {
		must(0, client.BeginTransaction())
		for i := range 4 {
			must(0, client.ProduceSync(c.ctx, record(topic, 2, 10*round+i)).FirstErr())
		}
		must(0, client.EndTransaction(c.ctx, kgo.TransactionEndTry(round != 1)))
	}
	equal([]string{"0", "1", "2", "20", "21", "22", "23", "3"}, slices.Sorted(slices.Values(c.read(topic, kgo.ReadCommitted()))))
	equal(12, len(c.read(topic, kgo.ReadUncommitted())))
}

func zombie(c *cell) {
	topic := c.topic(c.name, 1)
	old, successor := c.client(kgo.TransactionalID(c.name)), c.client(kgo.TransactionalID(c.name))
	must(0, old.BeginTransaction())
	must(0, old.ProduceSync(c.ctx, record(topic, 1, 1)).FirstErr())
	must(0, successor.BeginTransaction())
	must(0, successor.ProduceSync(c.ctx, record(topic, 1, 2)).FirstErr())
	err := old.EndTransaction(c.ctx, kgo.TryCommit)
	if err != nil && kerr.IsRetriable(err) {
		panic(err)
	}
	check(err != nil, "the zombie committed")
	must(0, successor.EndTransaction(c.ctx, kgo.TryCommit))
	equal([]string{"2"}, c.read(topic, kgo.ReadCommitted()))
}
