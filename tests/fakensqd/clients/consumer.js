// A consumer of nsqjs that prints body and attempts of each message: node consumer.js ADDRESS TOPIC CHANNEL
const { Reader } = require('nsqjs')

const [address, topic, channel] = process.argv.slice(2)
// Seconds between attempts to reconnect, too; nsqjs takes no less than 1.
const reader = new Reader(topic, channel, { nsqdTCPAddresses: [address], lookupdPollInterval: 1 })
reader.on('message', (message) => {
  console.log(`${message.body} ${message.attempts}`)
  message.finish()
})
reader.on('error', (error) => console.error(String(error)))
reader.connect()
