package main

import (
	"context"
	"strconv"
	"sync"

	"github.com/IBM/sarama"
)

const inputs = 400

// process consumes, processes and produces by a group: every input becomes one output, whatever moves or dies.
func process(c *cell) {
	source, target := c.topic(c.name+"-in", partitions), c.topic(c.name+"-out", 2)
	c.produce(source, partitions, 0, inputs)
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	start := func(number, abandonAfter int) {
		workers.Go(func() {
			w := &worker{cell: c, target: target, id: c.name + strconv.Itoa(number), abandonAfter: abandonAfter}
			w.run(ctx, source)
		})
	}
	defer workers.Wait()
	defer cancel()
	reader := c.outputs(target)
	found := 0
	for threshold := 0; threshold <= inputs; threshold += 50 {
		c.until("output "+strconv.Itoa(threshold), func() bool {
			for {
				select {
				case <-reader:
					found++
					continue
				default:
					return found >= threshold
				}
			}
		})
		at(threshold)
		if number := threshold / 50; number < 4 { // members join; the first two end inside a transaction
			start(number, []int{8, 8, -1, -1}[number])
		}
	}
	cancel()
	workers.Wait()
	equal(numbers(0, inputs), byNumber(c.read(target, sarama.ReadCommitted, inputs)))
}

func (c *cell) outputs(target string) <-chan string {
	consumer := must(sarama.NewConsumer([]string{c.bootstrap}, c.config()))
	c.keep(consumer)
	found := make(chan string, 10_000)
	for partition := range int32(2) {
		reader := must(consumer.ConsumePartition(target, partition, sarama.OffsetOldest))
		c.closers = append(c.closers, reader.AsyncClose)
		go func() {
			for each := range reader.Messages() {
				found <- string(each.Value)
			}
		}()
	}
	return found
}

// worker is a member with a transactional producer. After an error it goes on from the committed positions, with new
// clients. It ends inside its transaction of number `abandonAfter`.
type worker struct {
	cell         *cell
	target       string
	id           string
	abandonAfter int
	mutex        sync.Mutex // claims run at the same time, a producer has one transaction
	producer     sarama.SyncProducer
	done         int
	abandoned    bool
	failed       bool // the producer
}

func (w *worker) run(ctx context.Context, source string) {
	config := w.cell.config()
	config.Consumer.Offsets.AutoCommit.Enable = false
	for ctx.Err() == nil && !w.abandoned {
		producer, err := w.cell.transactional(w.id)
		if err != nil {
			continue
		}
		w.producer, w.failed = producer, false
		if group, err := sarama.NewConsumerGroup([]string{w.cell.bootstrap}, w.cell.name, config); err == nil {
			for ctx.Err() == nil && !w.abandoned && !w.failed {
				_ = group.Consume(ctx, []string{source}, w) // ends with each rebalance
			}
			_ = group.Close()
		}
		_ = producer.Close()
	}
}

func (w *worker) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (w *worker) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (w *worker) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case each, more := <-claim.Messages():
			if !more {
				return nil
			}
			if err := w.one(session, gathered(each, claim.Messages())); err != nil {
				return err
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

// gathered are up to ten messages that are there.
func gathered(first *sarama.ConsumerMessage, more <-chan *sarama.ConsumerMessage) []*sarama.ConsumerMessage {
	all := []*sarama.ConsumerMessage{first}
	for len(all) < 10 {
		select {
		case each, open := <-more:
			if !open {
				return all
			}
			all = append(all, each)
		default:
			return all
		}
	}
	return all
}

func (w *worker) one(session sarama.ConsumerGroupSession, some []*sarama.ConsumerMessage) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if err := session.Context().Err(); err != nil {
		return err
	}
	if w.abandoned || w.failed {
		return context.Canceled
	}
	err := w.transact(session, some)
	w.failed = err != nil
	if err == nil && w.done == w.abandonAfter {
		w.abandoned = true
		return context.Canceled
	}
	if err == nil {
		err = w.producer.CommitTxn()
		w.failed = err != nil
	}
	return err // the claim ends, and with it the session
}

func (w *worker) transact(session sarama.ConsumerGroupSession, some []*sarama.ConsumerMessage) error {
	w.done++
	if err := w.producer.BeginTxn(); err != nil {
		return err
	}
	outputs := []*sarama.ProducerMessage{}
	for _, each := range some {
		outputs = append(outputs, message(w.target, 2, must(strconv.Atoi(string(each.Value)))))
	}
	if err := w.producer.SendMessages(outputs); err != nil {
		return err
	}
	return w.producer.AddMessageToTxnWithGroupMetadata(some[len(some)-1], &sarama.ConsumerGroupMetadata{
		GroupID: w.cell.name, GenerationID: session.GenerationID(), MemberID: session.MemberID()}, nil)
}
