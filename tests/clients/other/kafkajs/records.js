'use strict'

const assert = require('node:assert/strict')
const { CompressionTypes } = require('kafkajs')
const { at, message, numbers } = require('./cell.js')

const INPUTS = 400
const PARTITIONS = 4

async function idempotent(cell) {
  const topic = await cell.topic(cell.name, 2)
  const producer = await cell.producer()
  for (let first = 0; first < 400; first += 40) {
    const sent = await producer.send({ topic, messages: numbers(first, first + 40).map(value => message(value, 2)) })
    assert.deepEqual(new Set(sent.map(each => each.baseOffset)), new Set([String(first / 2)]))
  }
  const found = await cell.read(topic, { count: 400 })
  for (const parity of [0, 1]) {
    assert.deepEqual(
      found.filter(value => Number(value) % 2 === parity),
      numbers(0, 400).filter(value => Number(value) % 2 === parity),
    )
  }
}

/** KafkaJS itself has no other compression; headers, a tombstone and timestamps come back as they were sent. */
async function contents(cell) {
  const topic = await cell.topic(cell.name, 1)
  const producer = await cell.producer()
  for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
    await producer.send({
      topic,
      compression,
      messages: [
        { key: 'k', value: `v${compression}`, headers: { h: 'x' }, timestamp: '1234567' },
        { key: 'k', value: null },
      ],
    })
  }
  const consumer = await cell.connected(cell.consumer())
  await consumer.subscribe({ topic, fromBeginning: true })
  const found = []
  await consumer.run({ eachMessage: async each => found.push(each.message) })
  await cell.until('four records', () => found.length === 4)
  assert.deepEqual(found.map(each => each.value && each.value.toString()), ['v0', null, 'v1', null])
  assert.equal(found[0].timestamp, '1234567')
  assert.equal(found[2].headers.h.toString(), 'x')
}

async function transactions(cell) {
  const topic = await cell.topic(cell.name, 2)
  const producer = await cell.transactional(cell.name)
  for (const round of [0, 1, 2]) {
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: numbers(10 * round, 10 * round + 4).map(value => message(value, 2)) })
    await (round === 1 ? transaction.abort() : transaction.commit())
  }
  const committed = await cell.read(topic, { count: 8 })
  assert.deepEqual(committed.sort(), ['0', '1', '2', '20', '21', '22', '23', '3'])
  assert.equal((await cell.read(topic, { committed: false, count: 12 })).length, 12)
}

async function zombie(cell) {
  const topic = await cell.topic(cell.name, 1)
  const old = await (await cell.transactional(cell.name)).transaction()
  await old.send({ topic, messages: [message('1', 1)] })
  const successor = await (await cell.transactional(cell.name)).transaction()
  await successor.send({ topic, messages: [message('2', 1)] })
  await assert.rejects(async () => {
    await old.send({ topic, messages: [message('3', 1)] })
    await old.commit()
  })
  await successor.commit()
  assert.deepEqual(await cell.read(topic, { count: 1 }), ['2'])
}

/** Consumes, processes and produces by a group: every input becomes one output, whatever moves or dies. */
async function process_(cell) {
  const source = await cell.topic(cell.name + '-in', PARTITIONS)
  const target = await cell.topic(cell.name + '-out', 2)
  await cell.produce(source, PARTITIONS, 0, INPUTS)
  const reader = await cell.connected(cell.consumer({ groupId: cell.name + '-progress' }))
  await reader.subscribe({ topic: target, fromBeginning: true })
  let found = 0
  await reader.run({ autoCommit: false, eachMessage: async () => found++ })
  const workers = []
  for (let threshold = 0; threshold <= INPUTS; threshold += 50) {
    await cell.until(`output ${threshold}`, () => found >= threshold)
    at(threshold)
    if (workers.length < 3) {
      workers.push(await new Worker(cell, source, target).start())
    } else if (threshold === 250) {
      await workers[0].consumer.disconnect()
    }
  }
  const outputs = await cell.read(target, { count: INPUTS })
  assert.deepEqual(outputs.sort((a, b) => a - b), numbers(0, INPUTS))
}

/**
 * KafkaJS commits positions in a transaction without naming the member. So each input partition has a transactional id
 * of its own: the member that gets the partition fences its former owner, and only then asks where to go on.
 */
class Worker {
  constructor(cell, source, target) {
    Object.assign(this, { cell, source, target })
    this.owned = new Map() // partition -> { producer, next }
  }

  async start() {
    this.consumer = await this.cell.connected(this.cell.consumer())
    this.consumer.on('consumer.rebalancing', () => this.owned.clear())
    this.consumer.on('consumer.group_join', () => this.owned.clear())
    await this.consumer.subscribe({ topic: this.source, fromBeginning: true })
    await this.consumer.run({
      autoCommit: false,
      eachBatchAutoResolve: false,
      eachBatch: each => this.batch(each),
    })
    return this
  }

  async take(partition) {
    const producer = await this.cell.transactional(`${this.cell.name}-${partition}`)
    const admin = await this.cell.admin()
    // The first transaction initializes the producer, which ends what a former owner left open.
    await (await producer.transaction()).abort()
    const [{ partitions }] = await admin.fetchOffsets({ groupId: this.cell.name, topics: [this.source] })
    const committed = Number(partitions.find(each => each.partition === partition).offset)
    this.owned.set(partition, { producer, next: Math.max(committed, 0) })
  }

  async batch({ batch, resolveOffset, heartbeat, isRunning, isStale }) {
    for (let first = 0; first < batch.messages.length; first += 10) {
      if (!isRunning() || isStale()) {
        return
      }
      const some = batch.messages.slice(first, first + 10)
      try {
        await this.one(batch.partition, some)
      } catch (failure) {
        this.owned.delete(batch.partition)
        throw failure // KafkaJS hands the batch in again
      }
      resolveOffset(some.at(-1).offset)
      await heartbeat()
    }
  }

  async one(partition, messages) {
    if (!this.owned.has(partition)) {
      await this.take(partition)
    }
    const { producer, next } = this.owned.get(partition)
    const fresh = messages.filter(each => Number(each.offset) >= next)
    if (fresh.length === 0) {
      return
    }
    const position = String(Number(fresh.at(-1).offset) + 1)
    const transaction = await producer.transaction()
    try {
      await transaction.send({
        topic: this.target,
        messages: fresh.map(each => message(each.value.toString(), 2)),
      })
      await transaction.sendOffsets({
        consumerGroupId: this.cell.name,
        topics: [{ topic: this.source, partitions: [{ partition, offset: position }] }],
      })
      await transaction.commit()
    } catch (failure) {
      await transaction.abort().catch(() => {})
      throw failure
    }
    const owned = this.owned.get(partition)
    if (owned) {
      owned.next = Number(position)
    }
  }
}

module.exports = { idempotent, contents, transactions, zombie, process: process_ }
