// Runs scenarios with KafkaJS. Each line of standard input is "SCENARIO BOOTSTRAP NAME ARGUMENTS..."; the answer is
// "ok", or "failed " and the reason. Scenarios may print "at NUMBER" before that. NAME is unique: it prefixes every
// topic, group and transactional id.
'use strict'

const readline = require('node:readline')
const { Cell } = require('./cell.js')

const scenarios = { ...require('./records.js'), ...require('./groups.js'), ...require('./admins.js') }

async function run(line) {
  const words = line.trim().split(' ')
  const cell = new Cell(words)
  try {
    await scenarios[words[0]](cell)
    console.log('ok')
  } catch (failure) {
    console.log('failed ' + String(failure.stack).replaceAll('\n', '\\n'))
  } finally {
    await cell.close()
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    await run(line)
  }
  process.exit(0)
}

main()
