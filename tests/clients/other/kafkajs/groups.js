'use strict'

const assert = require('node:assert/strict')
const { fails, numbers } = require('./cell.js')

const PARTITIONS = 4

/** Consumes, and commits after each record. */
class Member {
  constructor(cell) {
    this.cell = cell
    this.owned = []
    this.values = []
  }

  async start() {
    this.consumer = await this.cell.connected(this.cell.consumer())
    this.consumer.on('consumer.rebalancing', () => (this.owned = []))
    this.consumer.on('consumer.group_join', ({ payload }) => {
      this.owned = payload.memberAssignment[this.cell.name] ?? []
    })
    await this.consumer.subscribe({ topic: this.cell.name, fromBeginning: true })
    await this.consumer.run({
      autoCommitThreshold: 1,
      eachMessage: async each => this.values.push(each.message.value.toString()),
    })
    return this
  }

  async leave() {
    await this.consumer.disconnect()
  }
}

function shared(...members) {
  const all = members.flatMap(member => member.owned).sort()
  return members.every(member => member.owned.length > 0) && String(all) === String([0, 1, 2, 3])
}

function have(expected, ...members) {
  const found = new Set(members.flatMap(member => member.values))
  return expected.every(value => found.has(value))
}

async function members(cell) {
  await cell.topic(cell.name, PARTITIONS)
  await cell.produce(cell.name, PARTITIONS, 0, 100)
  const first = await new Member(cell).start()
  await cell.until('share of one', () => shared(first))
  await cell.until('record', () => have(numbers(0, 100), first))
  const second = await new Member(cell).start()
  await cell.until('share of two', () => shared(first, second))
  await cell.produce(cell.name, PARTITIONS, 100, 200)
  await cell.until('record of two', () => have(numbers(100, 200), first, second))
  const again = second.values.filter(value => Number(value) < 100)
  assert.deepEqual(again, [], 'the second member read again what the first had committed')
  await second.leave()
  await cell.until('share of the one that is left', () => shared(first))
}

/** Listed, described and deleted. */
async function groups(cell) {
  const admin = await cell.admin()
  await cell.topic(cell.name, PARTITIONS)
  const member = await new Member(cell).start()
  await cell.until('share of one', () => shared(member))
  await cell.produce(cell.name, PARTITIONS, 0, 40)
  await cell.until('record', () => have(numbers(0, 40), member))
  const listed = (await admin.listGroups()).groups.find(each => each.groupId === cell.name)
  assert.equal(listed.protocolType, 'consumer')
  const [described] = (await admin.describeGroups([cell.name])).groups
  assert.equal(described.state, 'Stable')
  assert.equal(described.members.length, 1)
  await fails('NON_EMPTY_GROUP', () => admin.deleteGroups([cell.name]))
  await member.leave()
  await admin.deleteGroups([cell.name])
  await fails('GROUP_ID_NOT_FOUND', () => admin.deleteGroups([cell.name]))
}

async function groupOffsets(cell) {
  const admin = await cell.admin()
  const topic = await cell.topic(cell.name, 2)
  await cell.produce(topic, 2, 0, 10)
  const positions = async () => {
    const [{ partitions }] = await admin.fetchOffsets({ groupId: cell.name, topics: [topic] })
    return partitions.sort((a, b) => a.partition - b.partition).map(each => each.offset)
  }
  assert.deepEqual(await positions(), ['-1', '-1'])
  await admin.setOffsets({
    groupId: cell.name,
    topic,
    partitions: [{ partition: 0, offset: '3' }, { partition: 1, offset: '4' }],
  })
  assert.deepEqual(await positions(), ['3', '4'])
}

module.exports = { members, groups, 'group-offsets': groupOffsets }
