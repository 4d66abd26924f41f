'use strict';

// Drives the Node client ali-ons from a test: a command a line on stdin, a line of JSON on stdout for each.
// The commands and answers are those of the Java driver beside it; what this client cannot do is no command.

const readline = require('readline');
const httpclient = require('urllib');
const { Consumer, Producer, Message } = require('ali-ons');

// The client logs to the console: stdout belongs to the answers.
const quiet = { debug() {}, info() {}, warn: console.error, error: console.error, log() {} };
const producers = new Map();
const consumers = new Map();
let started = 0;

async function producer(o) {
  const group = o.group || 'node_driver_producer';
  const key = `${o.ns} ${group}`;
  if (!producers.has(key)) {
    const made = new Producer({
      httpclient, logger: quiet, nameSrv: o.ns, producerGroup: group, instanceName: `node-${process.pid}-${started++}`,
      sendMsgTimeout: 10000,
    });
    made.on('error', console.error);
    await made.ready();
    producers.set(key, made);
  }
  return producers.get(key);
}

async function send(o) {
  const from = await producer(o);
  const sent = [];
  for (let i = 0; i < Number(o.count || 1); i++) {
    const body = `${o.prefix || 'm'}-${i}`.padEnd(Number(o.size || 0), '.');
    const message = new Message(o.topic, o.tag || '', body);
    if (o.keys) message.keys = o.keys.split(' ');
    if (o.delay) message.delayTimeLevel = Number(o.delay);
    if (o.shard) message.shardingKey = o.shard;
    for (const pair of (o.props || '').split(',').filter(Boolean)) {
      const at = pair.indexOf(':');
      message.properties[pair.slice(0, at)] = pair.slice(at + 1);
    }
    const result = await from.send(message);
    sent.push({
      id: result.msgId, broker: result.messageQueue.brokerName, queue: Number(result.messageQueue.queueId),
      offset: Number(result.queueOffset), status: result.sendStatus, body,
    });
  }
  return { sent };
}

async function push(o) {
  const one = { seen: [], deliveries: new Map() };
  one.client = new Consumer({
    httpclient, logger: quiet, nameSrv: o.ns, consumerGroup: o.group, isBroadcast: o.broadcast === 'true',
    instanceName: o.instance || `node-push-${process.pid}-${started++}`,
    consumeFromWhere: o.from === 'last' ? 'CONSUME_FROM_LAST_OFFSET' : 'CONSUME_FROM_FIRST_OFFSET',
    pollNameServerInteval: 1000, rebalanceInterval: 1000, maxReconsumeTimes: Number(o.max || 16),
  });
  one.client.on('error', console.error);
  one.client.subscribe(o.topic, o.expression || '*', async message => {
    const body = message.body.toString();
    one.seen.push({
      id: message.msgId, topic: message.topic, broker: '', queue: message.queueId, offset: Number(message.queueOffset),
      tag: message.tags || null, keys: message.keys || null, reconsumed: message.reconsumeTimes,
      born: Number(message.bornTimestamp), stored: Number(message.storeTimestamp), seen: Date.now(),
      properties: message.properties, body,
    });
    const delivery = (one.deliveries.get(body) || 0) + 1;
    one.deliveries.set(body, delivery);
    return delivery > Number(o.fail || 0) ? undefined : Consumer.ACTION_RETRY;
  });
  await one.client.ready();
  consumers.set(o.handle, one);
  return { client: one.client.clientId };
}

async function consumed(o) {
  const one = consumers.get(o.handle);
  const deadline = Date.now() + 1000 * Number(o.seconds || 30);
  while (one.seen.length < Number(o.count || 0) && Date.now() < deadline) {
    await new Promise(resolve => setTimeout(resolve, 20));
  }
  return { messages: one.seen };
}

async function stop(o) {
  const one = consumers.get(o.handle);
  consumers.delete(o.handle);
  await one.client.close();
  return { stopped: true };
}

const verbs = { send, push, consumed, stop };

async function run(line) {
  const [ verb, ...words ] = line.trim().split(/ +/);
  if (!verbs[verb]) throw new Error(`no such command: ${verb}`);
  const options = {};
  for (const word of words) {
    const at = word.indexOf('=');
    options[word.slice(0, at)] = decodeURIComponent(word.slice(at + 1));
  }
  return verbs[verb](options);
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let answer;
    try {
      answer = { ok: true, ...await run(line) };
    } catch (error) {
      console.error(error);
      answer = { ok: false, error: String(error) };
    }
    process.stdout.write(JSON.stringify(answer) + '\n');
  }
  process.exit(0);
}

main();
