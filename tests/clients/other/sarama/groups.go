package main

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/IBM/sarama"
)

const partitions = 4

// member consumes in goroutines of its own, and commits what it has read.
type member struct {
	group      sarama.ConsumerGroup
	stop       context.CancelFunc
	done       chan struct{}
	mutex      sync.Mutex
	owned      map[int32]bool
	values     []string
	rebalances int
}

func (c *cell) member(instance string) *member {
	config := c.config()
	config.Consumer.Group.InstanceId = instance
	config.Consumer.Offsets.AutoCommit.Enable = false
	m := &member{group: must(sarama.NewConsumerGroup([]string{c.bootstrap}, c.name, config)),
		owned: map[int32]bool{}, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			_ = m.group.Consume(ctx, []string{c.name}, m) // an error is followed by another attempt, as users do
		}
	}()
	c.closers = append(c.closers, m.leave)
	return m
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.owned = map[int32]bool{}
	for _, claimed := range session.Claims() {
		for _, partition := range claimed {
			m.owned[partition] = true
		}
	}
	m.rebalances++
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.owned = map[int32]bool{}
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case each, more := <-claim.Messages():
			if !more {
				return nil
			}
			m.mutex.Lock()
			m.values = append(m.values, string(each.Value))
			m.mutex.Unlock()
			session.MarkMessage(each, "")
			session.Commit()
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) leave() {
	m.stop()
	<-m.done
	_ = m.group.Close()
}

func (m *member) state() (owned map[int32]bool, values []string, rebalances int) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return maps.Clone(m.owned), slices.Clone(m.values), m.rebalances
}

func shared(all ...*member) func() bool {
	return func() bool {
		together, count := map[int32]bool{}, 0
		for _, m := range all {
			owned, _, _ := m.state()
			if len(owned) == 0 {
				return false
			}
			count += len(owned)
			maps.Copy(together, owned)
		}
		return count == partitions && len(together) == partitions
	}
}

// have tells whether the members together have read all these values.
func have(expected []string, all ...*member) func() bool {
	return func() bool {
		found := map[string]bool{}
		for _, m := range all {
			_, values, _ := m.state()
			for _, value := range values {
				found[value] = true
			}
		}
		return !slices.ContainsFunc(expected, func(value string) bool { return !found[value] })
	}
}

func members(c *cell) {
	c.topic(c.name, partitions)
	c.produce(c.name, partitions, 0, 100)
	first := c.member("")
	c.until("share of one", shared(first))
	c.until("record", have(numbers(0, 100), first))
	second := c.member("")
	c.until("share of two", shared(first, second))
	c.produce(c.name, partitions, 100, 200)
	c.until("record of two", have(numbers(100, 200), first, second))
	_, values, _ := second.state()
	for _, value := range values {
		check(must(strconv.Atoi(value)) >= 100, "the second member read again what the first had committed: ", value)
	}
	second.leave()
	c.until("share of the one that is left", shared(first))
	first.leave()
}

// A static member comes back to its partitions, and the other member notices nothing.
func static(c *cell) {
	c.topic(c.name, partitions)
	first, second := c.member("one"), c.member("two")
	c.until("share of two", shared(first, second))
	owned, _, _ := first.state()
	_, _, rebalances := second.state()
	first.leave()
	again := c.member("one")
	c.until("share of the restarted one", shared(again, second))
	found, _, _ := again.state()
	equal(owned, found)
	_, _, now := second.state()
	equal(rebalances, now)
}
