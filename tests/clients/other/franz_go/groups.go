package main

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 4

// member polls and commits in a goroutine of its own.
type member struct {
	client     *kgo.Client
	stop       context.CancelFunc
	done       chan struct{}
	mutex      sync.Mutex
	owned      map[int32]bool
	values     []string
	rebalances int
}

func (c *cell) join(options ...kgo.Opt) *member {
	m := &member{owned: map[int32]bool{}, done: make(chan struct{})}
	taken := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
		m.mutex.Lock()
		defer m.mutex.Unlock()
		for _, each := range lost {
			for _, partition := range each {
				delete(m.owned, partition)
			}
		}
	}
	m.client = c.client(append(options, kgo.OnPartitionsRevoked(taken), kgo.OnPartitionsLost(taken),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
			m.mutex.Lock()
			defer m.mutex.Unlock()
			for _, each := range given {
				for _, partition := range each {
					m.owned[partition] = true
				}
			}
			m.rebalances++
		}), kgo.AutoCommitInterval(100*time.Millisecond))...)
	ctx, cancel := context.WithCancel(c.ctx)
	m.stop = cancel
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			m.client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				m.mutex.Lock()
				defer m.mutex.Unlock()
				m.values = append(m.values, string(r.Value))
			})
		}
	}()
	return m
}

func (m *member) leave() {
	m.stop()
	<-m.done
	m.client.CloseAllowingRebalance()
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
	shareComeAndGo(c, c.member(c.arguments[0], kgo.ConsumeTopics(c.name)))
}

func eager(c *cell) {
	shareComeAndGo(c, c.member("classic", kgo.ConsumeTopics(c.name), kgo.Balancers(kgo.RangeBalancer())))
}

func shareComeAndGo(c *cell, options []kgo.Opt) {
	c.topic(c.name, partitions)
	c.produce(c.name, partitions, 0, 100)
	first := c.join(options...)
	c.until("share of one", shared(first))
	c.until("record", have(numbers(0, 100), first))
	c.until("committed position", func() bool {
		return len(must(c.admin().FetchOffsets(c.ctx, c.name))[c.name]) == partitions
	})
	second := c.join(options...)
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

// A topic created later that matches is read as well, one that does not is not.
func regex(c *cell) {
	c.topic(c.name+"-a", partitions)
	m := c.join(c.member(c.arguments[0], kgo.ConsumeRegex(), kgo.ConsumeTopics("^"+c.name+"-[a-c]$"),
		kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(100*time.Millisecond))...)
	c.until("share of one", shared(m))
	c.topic(c.name+"-x", 1)
	c.topic(c.name+"-b", 1)
	c.produce(c.name+"-b", 1, 7, 8)
	c.until("record of the new topic", have([]string{"7"}, m))
	m.leave()
}

// A static member comes back to its partitions, and the other member notices nothing.
func static(c *cell) {
	c.topic(c.name, partitions)
	options := func(instance string) []kgo.Opt {
		return c.member(c.arguments[0], kgo.ConsumeTopics(c.name), kgo.InstanceID(instance))
	}
	first, second := c.join(options("one")...), c.join(options("two")...)
	c.until("share of two", shared(first, second))
	owned, _, _ := first.state()
	_, _, rebalances := second.state()
	first.stop()
	<-first.done
	first.client.CloseAllowingRebalance()
	again := c.join(options("one")...)
	c.until("share of the restarted one", shared(again, second))
	found, _, _ := again.state()
	equal(owned, found)
	_, _, now := second.state()
	equal(rebalances, now)
	again.leave()
	second.leave()
}
