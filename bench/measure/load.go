package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// unitBody is the body of number i: a prompt of about 200 bytes, which gives a
// title of about as many, two labels, and a payload of about 1 KB. Bodies differ
// as those of real callers do, so that indexes on titles and labels grow as they
// would for these.
func unitBody(i int) []byte {
	body, err := json.Marshal(map[string]any{
		"backend": "mock", "prompt": unitPrompt, "payload": json.RawMessage(payload(i)),
		"labels": json.RawMessage(labels(i)),
	})
	if err != nil {
		panic(err)
	}
	return body
}

const unitPrompt = "Summarise the letter of {customer} about {subject} in three sentences for the clerk who answers it; " +
	"name amounts and dates, and say whether an answer is due.\n\n{text}"

// payload is about 1 KB of JSON.
func payload(i int) []byte {
	text, err := json.Marshal(map[string]string{
		"customer": name(i, 2), "subject": strings.ToLower(name(i+7_000_000, 4)), "text": lorem(i, 850),
	})
	if err != nil {
		panic(err)
	}
	return text
}

func labels(i int) string {
	return fmt.Sprintf(`{"kind":"letter","project":"project-%d","customer":"c-%d"}`, i%20, i%997)
}

var words = strings.Fields(`amber basalt cedar delta ember fjord garnet harbour indigo juniper kestrel larch meadow
	nettle orchard pebble quarry russet saddle thicket umber valley willow yarrow zephyr anchor beacon copper drift
	elder fern glacier heather island jasper kelp lantern marble north opal pine quill river stone timber upland`)

// name is so many capitalised words, the same for the same number.
func name(i, count int) string {
	r := rand.New(rand.NewPCG(uint64(i), 1))
	var b strings.Builder
	for n := range count {
		word := words[r.IntN(len(words))]
		if n > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

func lorem(i, bytes int) string {
	r := rand.New(rand.NewPCG(uint64(i), 2))
	var b strings.Builder
	for b.Len() < bytes {
		b.WriteString(words[r.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()
}

// transcriptBytes is what the peers store beside each result: 4 KB that compress
// no further.
const transcriptBytes = 4 << 10

var transcript = func() []byte {
	r := rand.New(rand.NewPCG(1, 3))
	blob := make([]byte, transcriptBytes)
	for n := range blob {
		blob[n] = byte(r.UintN(256))
	}
	return blob
}()

// result is what the peers store as a unit's result.
func result(i int) string { return "mock (no model was called): " + lorem(i, 150) }
