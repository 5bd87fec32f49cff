// The official package against a server of ours; the argument is its address.
import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'

const client = new Anthropic({ baseURL: process.argv[2], apiKey: 'any' })
const { batches } = client.messages
const request = (id, more) => ({ custom_id: id, params: { model: 'mock-1', max_tokens: 9, messages: [{ role: 'user', content: 'hello ' + id }], ...more } })
const ended = async id => {
  for (;;) {
    const batch = await batches.retrieve(id)
    if (batch.processing_status === 'ended') return batch
    assert.equal(batch.results_url, null)
    await new Promise(r => setTimeout(r, 50))
  }
}
const results = async id => {
  const all = {}
  for await (const line of await batches.results(id)) all[line.custom_id] = line.result
  return all
}

const first = await batches.create({ requests: [request('a'), request('b', { mock: { fail: 'invalid_request' } })] })
assert.equal(first.processing_status, 'in_progress')
assert.deepEqual(first.request_counts, { processing: 2, succeeded: 0, errored: 0, canceled: 0, expired: 0 })
const batch = await ended(first.id)
assert.deepEqual(batch.request_counts, { processing: 0, succeeded: 1, errored: 1, canceled: 0, expired: 0 })
const got = await results(first.id)
assert.equal(got.a.message.content[0].text, 'mock (no model was called): hello a')
assert.equal(got.b.error.error.type, 'invalid_request_error')

const slow = await batches.create({ requests: [request('a', { mock: { sleep: 600 } })] })
assert.equal((await batches.cancel(slow.id)).processing_status, 'canceling')
assert.equal((await ended(slow.id)).request_counts.canceled, 1)
assert.equal((await results(slow.id)).a.type, 'canceled')

const ids = []
for await (const b of batches.list({ limit: 1 })) if (ids.push(b.id) === 2) break
assert.deepEqual(ids, [slow.id, first.id])
await assert.rejects(batches.create({ requests: [request('a'), request('a')] }), e => e instanceof Anthropic.BadRequestError && !!e.requestID)
assert.deepEqual(await batches.delete(first.id), { id: first.id, type: 'message_batch_deleted' })
await assert.rejects(batches.retrieve(first.id), e => e instanceof Anthropic.NotFoundError)
