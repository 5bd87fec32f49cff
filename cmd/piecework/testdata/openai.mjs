// The official package against a server of ours; the argument is its address.
import assert from 'node:assert/strict'
import OpenAI, { toFile } from 'openai'

const client = new OpenAI({ baseURL: process.argv[2] + '/v1', apiKey: 'any' })
const url = '/v1/chat/completions'
const line = (id, body) => JSON.stringify({ custom_id: id, method: 'POST', url, body })
const ask = (text, more) => ({ model: 'mock-1', messages: [{ role: 'user', content: text }], ...more })
const submit = async (...lines) => {
  const file = await client.files.create({ file: await toFile(Buffer.from(lines.join('\n')), 'node.jsonl'), purpose: 'batch' })
  assert.equal(file.purpose, 'batch')
  assert.equal(file.filename, 'node.jsonl')
  return client.batches.create({ input_file_id: file.id, endpoint: url, completion_window: '24h', metadata: { from: 'node' } })
}
const over = async id => {
  for (let last = 0; ; await new Promise(r => setTimeout(r, 50))) {
    const batch = await client.batches.retrieve(id)
    const n = batch.request_counts
    assert(n.completed + n.failed <= n.total && n.completed + n.failed >= last)
    last = n.completed + n.failed
    if (['completed', 'failed', 'cancelled', 'expired'].includes(batch.status)) return batch
  }
}
const content = async id => (await (await client.files.content(id)).text()).trim().split('\n').map(text => JSON.parse(text))

const batch = await over((await submit(line('a', ask('hello')), line('b', ask('x', { mock: { fail: 'invalid_request' } })))).id)
assert.equal(batch.status, 'completed')
assert.deepEqual(batch.request_counts, { total: 2, completed: 1, failed: 1 })
assert.deepEqual(batch.metadata, { from: 'node' })
const [good] = await content(batch.output_file_id)
assert.equal(good.custom_id, 'a')
assert.equal(good.response.body.choices[0].message.content, 'mock (no model was called): hello')
const [bad] = await content(batch.error_file_id)
assert.equal(bad.response.status_code, 400)

const failed = await over((await submit(line('a', ask('x')), line('a', ask('y')))).id)
assert.equal(failed.status, 'failed')
assert.equal(failed.errors.data[0].code, 'duplicate_custom_id')
assert.equal(failed.errors.data[0].line, 2)
assert.equal(failed.output_file_id, null)

const slow = await submit(line('a', ask('x', { mock: { sleep: 600 } })))
assert(['cancelling', 'cancelled'].includes((await client.batches.cancel(slow.id)).status))
assert.equal((await over(slow.id)).status, 'cancelled')

const ids = []
for await (const b of client.batches.list({ limit: 1 })) if (ids.push(b.id) === 3) break
assert.deepEqual(ids, [slow.id, failed.id, batch.id])
let files = 0
for await (const f of client.files.list({ limit: 2 })) files += f.object === 'file'
assert(files >= 4)

await assert.rejects(client.batches.retrieve('batch_nosuch'), e => e instanceof OpenAI.NotFoundError && !!e.requestID && e.type === 'invalid_request_error')
await assert.rejects(client.batches.create({ input_file_id: 'file-nosuch', endpoint: url, completion_window: '24h' }),
  e => e instanceof OpenAI.BadRequestError && e.param === 'input_file_id')
assert.deepEqual(await client.files.delete(batch.error_file_id), { id: batch.error_file_id, object: 'file', deleted: true })
