'use strict'

const assert = require('node:assert/strict')
const { Kafka, logLevel, Partitioners } = require('kafkajs')

const PATIENCE_MS = 90_000
const RETRIES = { initialRetryTime: 20, maxRetryTime: 300, retries: 100 }

/** One scenario's cluster, unique name and arguments, and the clients it makes. */
class Cell {
  constructor(words) {
    this.name = words[2]
    this.arguments = words.slice(3)
    this.limit = Date.now() + PATIENCE_MS
    this.closers = []
    this.kafka = new Kafka({
      clientId: this.name,
      brokers: [words[1]],
      retry: RETRIES,
      logLevel: process.env.KAFKAJS_LOG ? logLevel.DEBUG : logLevel.NOTHING,
    })
  }

  async close() {
    for (const close of this.closers.reverse()) {
      await close().catch(() => {})
    }
  }

  async connected(client) {
    await client.connect()
    this.closers.push(() => client.disconnect())
    return client
  }

  async admin() {
    if (!this.keptAdmin) {
      this.keptAdmin = await this.connected(this.kafka.admin())
    }
    return this.keptAdmin
  }

  producer(settings = {}) {
    return this.connected(
      this.kafka.producer({ idempotent: true, createPartitioner: Partitioners.DefaultPartitioner, ...settings }),
    )
  }

  /** Retrying forever would keep a fenced producer at it. */
  transactional(transactionalId) {
    return this.producer({
      transactionalId,
      maxInFlightRequests: 1,
      transactionTimeout: 3000,
      retry: { ...RETRIES, retries: 20 },
    })
  }

  consumer(settings = {}) {
    return this.kafka.consumer({
      groupId: this.name,
      sessionTimeout: 6000,
      heartbeatInterval: 300,
      rebalanceTimeout: 10_000,
      maxWaitTimeInMs: 100,
      allowAutoTopicCreation: false,
      ...settings,
    })
  }

  async topic(name, partitions) {
    const admin = await this.admin()
    await admin.createTopics({ topics: [{ topic: name, numPartitions: partitions, replicationFactor: -1 }] })
    return name
  }

  /** Sends the values `first` up to `end`, each to the partition of its number. */
  async produce(topic, partitions, first, end) {
    const producer = await this.producer()
    await producer.send({ topic, messages: numbers(first, end).map(value => message(value, partitions)) })
  }

  /** The values of the whole topic, by partition, each up to the offset that the isolation level shows. */
  async read(topic, { committed = true, count }) {
    const consumer = await this.connected(this.consumer({
      groupId: `${this.name}-reader-${this.closers.length}`,
      readUncommitted: !committed,
    }))
    await consumer.subscribe({ topic, fromBeginning: true })
    const found = []
    await consumer.run({ autoCommit: false, eachMessage: async each => found.push(each) })
    await this.until(`${count} records`, () => found.length >= count)
    await new Promise(resolve => setTimeout(resolve, 500)) // for what should not be there
    await consumer.stop()
    return found.map(each => each.message.value.toString())
  }

  async until(what, happened) {
    while (!(await happened())) {
      assert(Date.now() < this.limit, `still no ${what}`)
      await new Promise(resolve => setTimeout(resolve, 5))
    }
  }
}

function message(value, partitions) {
  return { key: 'k' + value, value, partition: Number(value) % partitions }
}

function numbers(first, end) {
  return Array.from({ length: end - first }, (_, i) => String(first + i))
}

function at(number) {
  console.log('at ' + number)
}

/** The call fails with this error of the protocol, bare, as a cause, or among several. */
async function fails(type, call) {
  let failure
  try {
    await call()
  } catch (thrown) {
    failure = thrown
  }
  const all = [failure, failure?.cause, ...(failure?.errors ?? []), ...(failure?.groups ?? [])]
  const types = all.map(each => each?.type ?? each?.error?.type)
  assert(types.includes(type), `expected ${type}, got ${failure?.stack}`)
}

module.exports = { Cell, at, fails, message, numbers }
