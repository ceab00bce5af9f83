package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const patience = 90 * time.Second

// cell is one scenario's cluster, unique name and arguments, and the clients it makes.
type cell struct {
	ctx       context.Context
	bootstrap string
	name      string
	arguments []string
	closers   []func()
}

func newCell(words []string) *cell {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	return &cell{ctx: ctx, bootstrap: words[1], name: words[2], arguments: words[3:], closers: []func(){cancel}}
}

func (c *cell) close() {
	for i := len(c.closers) - 1; i >= 0; i-- {
		c.closers[i]()
	}
}

func at(number int) {
	fmt.Println("at " + strconv.Itoa(number))
}

func (c *cell) client(options ...kgo.Opt) *kgo.Client {
	if os.Getenv("KGO_LOG") != "" { // everything that the client does, to the program's log
		options = append(options, kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelDebug, nil)))
	}
	if folder := os.Getenv("CLIENT_TLS"); folder != "" { // with the files of an authority and of a client
		authorities := x509.NewCertPool()
		check(authorities.AppendCertsFromPEM(must(os.ReadFile(folder+"/ca.crt"))), "authority", folder)
		certificate := must(tls.LoadX509KeyPair(folder+"/client.crt", folder+"/client.key"))
		options = append(options, kgo.DialTLSConfig(&tls.Config{
			RootCAs: authorities, Certificates: []tls.Certificate{certificate},
		}))
	}
	if login := os.Getenv("CLIENT_SASL"); login != "" { // mechanism, user and password, or mechanism and token
		options = append(options, kgo.SASL(mechanism(strings.SplitN(login, " ", 3))))
	}
	client := must(kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}, options...)...))
	c.closers = append(c.closers, client.CloseAllowingRebalance)
	return client
}

func mechanism(words []string) sasl.Mechanism {
	switch words[0] {
	case "SCRAM-SHA-256":
		return scram.Auth{User: words[1], Pass: words[2]}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: words[1], Pass: words[2]}.AsSha512Mechanism()
	case "PLAIN":
		return plain.Auth{User: words[1], Pass: words[2]}.AsMechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: words[1]}.AsMechanism()
	}
	panic("no mechanism " + words[0])
}

func (c *cell) admin() *kadm.Client {
	return kadm.NewClient(c.client())
}

func (c *cell) topic(name string, partitions int32) string {
	created := must(c.admin().CreateTopic(c.ctx, partitions, -1, nil, name))
	check(created.Err == nil, "creation", created.Err)
	return name
}

// member has the options of a member whose absence is noticed soon; the first argument is the group protocol.
func (c *cell) member(protocol string, options ...kgo.Opt) []kgo.Opt {
	all := append([]kgo.Opt{
		kgo.ConsumerGroup(c.name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(6 * time.Second),
		kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.RequireStableFetchOffsets(),
	}, options...)
	if protocol == "consumer" {
		all = append(all, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	return all
}

func record(topic string, partitions, number int) *kgo.Record {
	value := strconv.Itoa(number)
	return &kgo.Record{Topic: topic, Partition: int32(number % partitions), Key: []byte("k" + value), Value: []byte(value)}
}

// produce sends the values `first` up to `end`, each to the partition of its number.
func (c *cell) produce(topic string, partitions, first, end int) {
	client := c.client()
	for i := first; i < end; i++ {
		client.Produce(c.ctx, record(topic, partitions, i), func(_ *kgo.Record, err error) {
			if err != nil {
				fmt.Println("failed produce: " + err.Error())
			}
		})
	}
	must(0, client.Flush(c.ctx))
}

// read returns the values up to the end that the isolation level shows.
func (c *cell) read(topic string, isolation kgo.IsolationLevel) []string {
	admin := c.admin()
	ends := must(admin.ListEndOffsets(c.ctx, topic))
	if isolation == kgo.ReadCommitted() {
		// A commit is answered once it is certain. Its markers, which show it to readers, may be stored a moment later.
		c.until("end of the transactions of "+topic, func() bool {
			shown := true
			must(admin.ListCommittedOffsets(c.ctx, topic)).Each(func(stable kadm.ListedOffset) {
				end, _ := ends.Lookup(topic, stable.Partition)
				shown = shown && stable.Offset >= end.Offset
			})
			return shown
		})
		ends = must(admin.ListCommittedOffsets(c.ctx, topic))
	}
	client := c.client(kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(isolation), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	starts := must(admin.ListStartOffsets(c.ctx, topic))
	left := map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(topic, end.Partition)
		if end.Offset > start.Offset {
			left[end.Partition] = end.Offset
		}
	})
	found := []string{}
	for len(left) > 0 {
		fetches := client.PollFetches(c.ctx)
		check(fetches.Err() == nil, "fetch", fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				found = append(found, string(r.Value))
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return found
}

func (c *cell) until(what string, happened func() bool) {
	limit := time.Now().Add(patience)
	for !happened() {
		check(time.Now().Before(limit), "still no "+what)
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

func fails(expected, err error) {
	check(errors.Is(err, expected), fmt.Sprintf("expected %v, got %v", expected, err))
}
