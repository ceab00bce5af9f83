package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const inputs = 400

// process consumes, processes and produces by a group: every input becomes one output, whatever moves or dies.
func process(c *cell) {
	source, target := c.topic(c.name+"-in", partitions), c.topic(c.name+"-out", 2)
	c.produce(source, partitions, 0, inputs)
	ctx, cancel := context.WithCancel(c.ctx)
	var workers sync.WaitGroup
	failures := make(chan error, 10)
	worker := func(number int, abandonAfter int) {
		workers.Go(func() {
			for ctx.Err() == nil {
				abandoned, err := work(ctx, c, source, target, number, abandonAfter)
				if abandoned {
					return
				}
				if err != nil && ctx.Err() == nil {
					select {
					case failures <- err: // goes on with a new client
					default:
						cancel()
					}
				}
			}
		})
	}
	reader := c.client(kgo.ConsumeTopics(target), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	found := []string{}
	for threshold := 0; threshold <= inputs; threshold += 50 {
		for len(found) < threshold {
			reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) { found = append(found, string(r.Value)) })
			check(ctx.Err() == nil, "no output ", threshold, " but ", len(found), ": ", drained(failures))
		}
		at(threshold)
		if number := threshold / 50; number < 4 { // members join; the first two end inside a transaction
			worker(number, []int{8, 8, -1, -1}[number])
		}
	}
	cancel()
	workers.Wait()
	outputs := c.read(target, kgo.ReadCommitted())
	slices.SortFunc(outputs, func(a, b string) int { return must(strconv.Atoi(a)) - must(strconv.Atoi(b)) })
	equal(numbers(0, inputs), outputs)
}

func drained(failures chan error) error {
	var all []error
	for {
		select {
		case err := <-failures:
			all = append(all, err)
		default:
			return errors.Join(all...)
		}
	}
}

// work returns at an error, or, with true, inside its transaction of number `abandonAfter`.
func work(ctx context.Context, c *cell, source, target string, number, abandonAfter int) (bool, error) {
	session, err := kgo.NewGroupTransactSession(c.member(c.arguments[0],
		kgo.SeedBrokers(c.bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeTopics(source),
		kgo.TransactionalID(c.name+strconv.Itoa(number)),
		kgo.TransactionTimeout(3*time.Second),
	)...)
	if err != nil {
		return false, err
	}
	defer session.CloseAllowingRebalance()
	for transactions := 1; ctx.Err() == nil; transactions++ {
		fetches := session.PollRecords(ctx, 10)
		if err := fetches.Err(); err != nil {
			return false, err
		}
		if err := session.Begin(); err != nil {
			return false, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			session.Produce(ctx, record(target, 2, must(strconv.Atoi(string(r.Value)))), nil)
		})
		if transactions == abandonAfter {
			return true, session.Client().Flush(ctx)
		}
		if _, err := session.End(ctx, kgo.TryCommit); err != nil {
			return false, err
		}
	}
	return false, nil
}
