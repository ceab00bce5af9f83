'use strict'

const assert = require('node:assert/strict')
const { ConfigResourceTypes } = require('kafkajs')
const { fails, numbers } = require('./cell.js')

async function topics(cell) {
  const admin = await cell.admin()
  const wanted = {
    topic: cell.name,
    numPartitions: 3,
    replicationFactor: -1,
    configEntries: [{ name: 'retention.ms', value: '60000' }],
  }
  assert.equal(await admin.createTopics({ topics: [wanted] }), true)
  assert.equal(await admin.createTopics({ topics: [wanted] }), false)
  await fails('INVALID_TOPIC_EXCEPTION', () => admin.createTopics({ topics: [{ ...wanted, topic: 'a/b' }] }))
  assert((await admin.listTopics()).includes(cell.name))
  await admin.createPartitions({ topicPartitions: [{ topic: cell.name, count: 5 }] })
  await cell.until('five partitions', async () => {
    const { topics: [described] } = await admin.fetchTopicMetadata({ topics: [cell.name] })
    return described.partitions.length === 5
  })
  await admin.deleteTopics({ topics: [cell.name] })
  await cell.until('deletion', async () => !(await admin.listTopics()).includes(cell.name))
}

async function configs(cell) {
  const admin = await cell.admin()
  await cell.topic(cell.name, 1)
  const resource = { type: ConfigResourceTypes.TOPIC, name: cell.name }
  const value = async name => {
    const { resources: [described] } = await admin.describeConfigs({ resources: [resource], includeSynonyms: true })
    return described.configEntries.find(each => each.configName === name).configValue
  }
  assert.equal(await value('retention.ms'), '604800000')
  await admin.alterConfigs({
    resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '120000' }] }],
  })
  await cell.until('changed value', async () => (await value('retention.ms')) === '120000')
}

async function records(cell) {
  const admin = await cell.admin()
  const topic = await cell.topic(cell.name, 1)
  await cell.produce(topic, 1, 0, 10)
  await admin.fetchTopicOffsets(topic) // so that KafkaJS knows the leader
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '3' }] })
  const [{ low, high }] = await admin.fetchTopicOffsets(topic)
  assert.deepEqual([low, high], ['3', '10'])
  const [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(topic, 1)
  assert.equal(offset, '3')
  assert.deepEqual(await cell.read(topic, { count: 7 }), numbers(3, 10))
}

async function cluster(cell) {
  const admin = await cell.admin()
  const topic = await cell.topic(cell.name, 1)
  const { brokers, controller, clusterId } = await admin.describeCluster()
  assert(brokers.some(each => each.nodeId === controller), 'the controller is no node')
  assert(clusterId)
  assert.equal((await admin.listPartitionReassignments({ topics: [{ topic, partitions: [0] }] })).topics.length, 0)
  const { topics: [described] } = await admin.fetchTopicMetadata({ topics: [topic] })
  const [{ replicas }] = described.partitions
  await admin.alterPartitionReassignments({ topics: [{ topic, partitionAssignment: [{ partition: 0, replicas }] }] })
}

module.exports = { topics, configs, records, cluster }
