// Makes calls of each kind with @grpc/grpc-js and prints their outcomes as one line of JSON.
//
//   node calls.js < SETTINGS
//
// SETTINGS is JSON: `target`, `ca` (PEM text, or null for none), the paths `predict` and `watch`, and in
// base64 the messages `small`, `large`, `sleep`, `unknown` and `health`.
'use strict';

const fs = require('fs');
const grpc = require('@grpc/grpc-js');

const settings = JSON.parse(fs.readFileSync(0, 'utf8'));
const message = (name) => Buffer.from(settings[name], 'base64');
const identity = (bytes) => bytes;
const afterMs = (ms) => new Date(Date.now() + ms);

function newClient(options = {}) {
  const credentials = settings.ca
    ? grpc.credentials.createSsl(Buffer.from(settings.ca))
    : grpc.credentials.createInsecure();
  const unlimited = {
    'grpc.max_receive_message_length': -1,
    'grpc.max_send_message_length': -1,
    'grpc.use_local_subchannel_pool': 1,
  };
  return new grpc.Client(settings.target, credentials, {...unlimited, ...options});
}

function unary(client, path, bytes, {timeoutMs = 60_000, cancelAfterMs, metadata} = {}) {
  return new Promise((resolve) => {
    const end = (error, reply) =>
      resolve({
        code: error ? error.code : 0,
        details: error ? error.details : '',
        reply: reply ? reply.toString('base64') : '',
      });
    const call = client.makeUnaryRequest(
      path, identity, identity, bytes, metadata ?? new grpc.Metadata(),
      {deadline: afterMs(timeoutMs)}, end);
    if (cancelAfterMs !== undefined) setTimeout(() => call.cancel(), cancelAfterMs);
  });
}

function firstOfStream(client, path, bytes) {
  return new Promise((resolve) => {
    const stream = client.makeServerStreamRequest(
      path, identity, identity, bytes, new grpc.Metadata(), {deadline: afterMs(60_000)});
    let first = '';
    stream.on('data', (reply) => {
      first = reply.toString('base64');
      stream.cancel();
    });
    stream.on('error', (error) => resolve({code: error.code, first}));
    stream.on('end', () => resolve({code: 0, first}));
  });
}

async function main() {
  const client = newClient();
  const gzip = newClient({'grpc.default_compression_algorithm': 2});
  const metadata = new grpc.Metadata();
  metadata.add('x-text', 'value');
  metadata.add('x-bytes-bin', Buffer.from([0xab, 0xab, 0xab]));
  const predict = settings.predict;
  const outcomes = {
    predict: await unary(client, predict, message('small'), {metadata}),
    large: await unary(client, predict, message('large')),
    gzip: await unary(gzip, predict, message('large')),
    unknown: await unary(client, predict, message('unknown')),
    unimplemented: await unary(client, '/test.Unknown/Call', message('small')),
    deadline: await unary(client, predict, message('sleep'), {timeoutMs: 100}),
    cancel: await unary(client, predict, message('sleep'), {cancelAfterMs: 100}),
    watch: await firstOfStream(client, settings.watch, message('health')),
    concurrent: await Promise.all(
      Array.from({length: 50}, () => unary(client, predict, message('small')))),
    again: await unary(client, predict, message('small')),
  };
  client.close();
  gzip.close();
  console.log(JSON.stringify(outcomes));
}

main();
