package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

const patience = 90 * time.Second

// cell is one scenario's cluster, unique name and arguments, and the clients it makes.
type cell struct {
	bootstrap string
	name      string
	version   sarama.KafkaVersion
	limit     time.Time
	closers   []func()
}

func newCell(words []string) *cell {
	if os.Getenv("SARAMA_LOG") != "" { // what the client does, to the program's log
		sarama.Logger = log.New(os.Stderr, "", log.Ltime|log.Lmicroseconds)
		sarama.DebugLogger = sarama.Logger
	}
	return &cell{bootstrap: words[1], name: words[2], version: must(sarama.ParseKafkaVersion(words[3])),
		limit: time.Now().Add(patience)}
}

func (c *cell) close() {
	for i := len(c.closers) - 1; i >= 0; i-- {
		c.closers[i]()
	}
}

func at(number int) {
	fmt.Println("at " + strconv.Itoa(number))
}

// config has short pauses, so that a cell is not made of them.
func (c *cell) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = c.version
	config.ClientID = c.name
	config.Metadata.Retry.Backoff = 20 * time.Millisecond
	config.Metadata.Retry.Max = 100
	config.Admin.Retry.Backoff = 20 * time.Millisecond
	config.Admin.Retry.Max = 100
	config.Admin.Timeout = 30 * time.Second
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1 // Sarama's condition for idempotence
	config.Producer.Return.Successes = true
	config.Producer.Retry.Max = 100
	config.Producer.Retry.Backoff = 20 * time.Millisecond
	config.Producer.Transaction.Retry.Backoff = 20 * time.Millisecond
	config.Producer.Transaction.Retry.Max = 500
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Retry.Backoff = 20 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Consumer.Group.Rebalance.Timeout = 10 * time.Second
	config.Consumer.Group.Rebalance.Retry.Backoff = 50 * time.Millisecond
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	return config
}

func (c *cell) keep(closer io.Closer) {
	c.closers = append(c.closers, func() { _ = closer.Close() })
}

func (c *cell) admin() sarama.ClusterAdmin {
	admin := must(sarama.NewClusterAdmin([]string{c.bootstrap}, c.config()))
	c.keep(admin)
	return admin
}

func (c *cell) producer(config *sarama.Config) sarama.SyncProducer {
	producer := must(sarama.NewSyncProducer([]string{c.bootstrap}, config))
	c.keep(producer)
	return producer
}

func (c *cell) transactional(id string) (sarama.SyncProducer, error) {
	config := c.config()
	config.Producer.Transaction.ID = id
	config.Producer.Transaction.Timeout = 3 * time.Second
	return sarama.NewSyncProducer([]string{c.bootstrap}, config)
}

func (c *cell) topic(name string, partitions int32) string {
	must(0, c.admin().CreateTopic(name, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: -1}, false))
	return name
}

func message(topic string, partitions, number int) *sarama.ProducerMessage {
	value := strconv.Itoa(number)
	return &sarama.ProducerMessage{Topic: topic, Partition: int32(number % partitions),
		Key: sarama.StringEncoder("k" + value), Value: sarama.StringEncoder(value)}
}

// produce sends the values `first` up to `end`, each to the partition of its number.
func (c *cell) produce(topic string, partitions, first, end int) {
	all := []*sarama.ProducerMessage{}
	for i := first; i < end; i++ {
		all = append(all, message(topic, partitions, i))
	}
	must(0, c.producer(c.config()).SendMessages(all))
}

// read returns the values up to the high watermark, or, of committed records, up to the last one expected.
func (c *cell) read(topic string, isolation sarama.IsolationLevel, count int) []string {
	config := c.config()
	config.Consumer.IsolationLevel = isolation
	client := must(sarama.NewClient([]string{c.bootstrap}, config))
	c.keep(client)
	consumer := must(sarama.NewConsumerFromClient(client))
	c.keep(consumer)
	found := make(chan string, 10_000)
	for _, partition := range must(client.Partitions(topic)) {
		reader := must(consumer.ConsumePartition(topic, partition, sarama.OffsetOldest))
		c.closers = append(c.closers, reader.AsyncClose)
		go func() {
			for each := range reader.Messages() {
				found <- string(each.Value)
			}
		}()
	}
	values := []string{}
	next := func(wait time.Duration) bool {
		select {
		case value := <-found:
			values = append(values, value)
			return true
		case <-time.After(wait):
			return false
		}
	}
	for len(values) < count {
		check(next(time.Until(c.limit)), "only ", len(values), " of ", count, " values: ", values)
	}
	for next(500 * time.Millisecond) { // what should not be there
	}
	return values
}

func (c *cell) until(what string, happened func() bool) {
	for !happened() {
		check(time.Now().Before(c.limit), "still no "+what)
		time.Sleep(5 * time.Millisecond)
	}
}

func numbers(first, end int) []string {
	all := []string{}
	for i := first; i < end; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

func byNumber(values []string) []string {
	slices.SortFunc(values, func(a, b string) int { return must(strconv.Atoi(a)) - must(strconv.Atoi(b)) })
	return values
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(ok bool, what ...any) {
	if !ok {
		panic(fmt.Sprint(what...))
	}
}

func equal(expected, found any) {
	check(reflect.DeepEqual(expected, found), fmt.Sprintf("expected %v, found %v", expected, found))
}

func fails(expected sarama.KError, err error) {
	check(errors.Is(err, expected), fmt.Sprintf("expected %v, got %v", expected, err))
}
