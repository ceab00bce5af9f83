package main

import (
	"strconv"

	"github.com/IBM/sarama"
)

func idempotent(c *cell) {
	topic := c.topic(c.name, 2)
	producer := c.producer(c.config())
	for i := range 400 {
		_, offset, err := producer.SendMessage(message(topic, 2, i))
		must(0, err)
		equal(int64(i/2), offset)
	}
	found := c.read(topic, sarama.ReadCommitted, 400)
	next := []int{0, 1}
	for _, value := range found { // in order in each partition
		number := must(strconv.Atoi(value))
		equal(next[number%2], number)
		next[number%2] += 2
	}
}

func compressed(c *cell) {
	topic := c.topic(c.name, 1)
	for i, codec := range []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4,
		sarama.CompressionZSTD,
	} {
		config := c.config()
		config.Producer.Compression = codec
		batch := []*sarama.ProducerMessage{}
		for j := range 20 {
			batch = append(batch, message(topic, 1, 20*i+j))
		}
		must(0, c.producer(config).SendMessages(batch))
	}
	equal(numbers(0, 100), c.read(topic, sarama.ReadCommitted, 100))
}

func transactions(c *cell) {
	topic := c.topic(c.name, 2)
	producer := must(c.transactional(c.name))
	c.keep(producer)
	for round := range 3 {
		must(0, producer.BeginTxn())
		for i := range 4 {
			_, _, err := producer.SendMessage(message(topic, 2, 10*round+i))
			must(0, err)
		}
		if round == 1 {
			must(0, producer.AbortTxn())
		} else {
			must(0, producer.CommitTxn())
		}
	}
	equal([]string{"0", "1", "2", "3", "20", "21", "22", "23"}, byNumber(c.read(topic, sarama.ReadCommitted, 8)))
	equal(12, len(c.read(topic, sarama.ReadUncommitted, 12)))
}

func zombie(c *cell) {
	topic := c.topic(c.name, 1)
	old := must(c.transactional(c.name))
	c.keep(old)
	must(0, old.BeginTxn())
	_, _, err := old.SendMessage(message(topic, 1, 1))
	must(0, err)
	successor := must(c.transactional(c.name))
	c.keep(successor)
	must(0, successor.BeginTxn())
	_, _, err = successor.SendMessage(message(topic, 1, 2))
	must(0, err)
	_, _, late := old.SendMessage(message(topic, 1, 3))
	check(late != nil || old.CommitTxn() != nil, "the zombie committed")
	must(0, successor.CommitTxn())
	equal([]string{"2"}, c.read(topic, sarama.ReadCommitted, 1))
}
