package prompt_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"piecework/internal/prompt"
)

const payload = `{
	"file_path": "docs/a b.txt", "n": 12345678901234567890, "huge": 1e400, "price": 1.50, "yes": true, "none": null,
	"order": {"id": 7, "items": [{"title": "first <b>"}, {"title": "second"}], "0": "zero", "empty": []},
	"list": [1, [2, 3], "x"], "tricky": "{file_path} {{n}} }} ${{ env.HOME }}", "with-dash": "d", "_x9": "u", "Name": "N", "name": "n",
	"empty": "", "uni": "schön \u2603"
}`

func TestRender(t *testing.T) {
	cases := []struct{ name, template, want string }{
		{"no placeholder", "plain", "plain"},
		{"nothing", "", ""},
		{"direct", "read {file_path}.", "read docs/a b.txt."},
		{"prefixed", "read {payload.file_path}.", "read docs/a b.txt."},
		{"adjacent", "{name}{Name}{empty}{_x9}{with-dash}", "nNud"},
		{"nested", "{order.id} {payload.order.id}", "7 7"},
		{"index by dot", "{order.items.0.title}", "first <b>"},
		{"index by bracket", "{order.items[1].title}{list[1][0]}", "second2"},
		{"digit as a key", "{order.0}", "zero"},
		{"numbers as written", "{n} {huge} {price}", "12345678901234567890 1e400 1.50"},
		{"bool and null", "{yes} {none}", "true null"},
		{"object is compact, in its order", "{order}", `{"id":7,"items":[{"title":"first <b>"},{"title":"second"}],"0":"zero","empty":[]}`},
		{"array", "{list} {order.empty}", `[1,[2,3],"x"] []`},
		{"unicode", "{uni} ☃ {uni}", "schön ☃ ☃ schön ☃"},
		{"values are not rendered again", "{tricky}", "{file_path} {{n}} }} ${{ env.HOME }}"},

		{"pair", "{{file_path}} and {{ x }}", "{file_path} and { x }"},
		{"pair around a placeholder", `{{"a": "{name}"}}`, `{"a": "{name}"}`},
		{"pair in a pair", `{{"a":{{"b":1}}}}`, `{"a":{"b":1}}`},
		{"JSON in a pair", `{{"a":{"b":1}}}`, `{"a":{"b":1}}`},
		{"three braces", "{{{name}}}", "{{name}}"},
		{"empty pair", "{{}} {{}}", "{} {}"},
		{"pair over lines", "{{\n{name}\n}}", "{\n{name}\n}"},

		{"JSON", `answer {"a":1,"b":{"c":[]}} for {name}`, `answer {"a":1,"b":{"c":[]}} for n`},
		{"placeholder in JSON", `{"a":{"b":{name}}}`, `{"a":{"b":n}}`},
		{"lone closing pair", "a }} b {name}", "a }} b n"},
		{"lone opening pair", "a {{ b {name}", "a {{ b n"},
		{"opening pair before a placeholder", "{{name} x", "{n x"},
		{"inner pair without outer end", "{{ a {{b}}", "{{ a {b}"},
		{"closing after a placeholder", "{name}}", "n}"},
		{"lone braces", "{ } {} { name } {", "{ } {} { name } {"},
		{"formats and attributes", "{name!r:>3} {x:1000000000d} {name:x}", "{name!r:>3} {x:1000000000d} {name:x}"},
		{"not names", "{1} {-a} {a b} {a.} {.a} {a..b} {a[} {a[]} {a[x]} {a[0} {a.-b} {a.0b} {é} {a,b}", "{1} {-a} {a b} {a.} {.a} {a..b} {a[} {a[]} {a[x]} {a[0} {a.-b} {a.0b} {é} {a,b}"},
		{"shell and formats", "${name} $(name) %s `{name}`", "$n $(name) %s `n`"},
		{"end in a placeholder", "{name", "{name"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := prompt.Render(c.template, json.RawMessage(payload), prompt.Fail)
			if err != nil || got != c.want {
				t.Errorf("Render(%q) = %q, %v; want %q", c.template, got, err, c.want)
			}
		})
	}
}

func TestPayloadItself(t *testing.T) {
	cases := []struct{ payload, template, want string }{
		{`{"a": 1}`, "{payload}", `{"a":1}`},
		{`{"payload": "mine", "a": 1}`, "{payload} {payload.a}", "mine 1"},
		{`{"payload": {"a": 2}, "a": 1, "b": 3}`, "{payload.a} {a} {payload.b} {payload.payload.a}", "2 1 3 2"},
		{`[5, 6]`, "{payload} {payload.1} {payload[0]}", "[5,6] 6 5"},
		{` "text" `, "{payload}", "text"},
		{``, "{payload}", "{}"},
		{`null`, "{payload}", "null"},
		{`{"a": 1, "a": 2}`, "{a}", "2"},
	}
	for _, c := range cases {
		got, err := prompt.Render(c.template, json.RawMessage(c.payload), "")
		if err != nil || got != c.want {
			t.Errorf("Render(%q, %s) = %q, %v; want %q", c.template, c.payload, got, err, c.want)
		}
	}
	if _, err := prompt.Render("x", json.RawMessage(`{"a":`), ""); err == nil {
		t.Error("a broken payload is no error")
	}
}

func TestMissingKey(t *testing.T) {
	keys := []string{
		"nobody", "payload.nobody", "order.nobody", "order.items.2", "order.items[2]", "list.01", "list.x",
		"file_path.x", "file_path.__class__", "payload.__class__.__init__.__globals__", "NAME", "none.x", "list[99999999999999999999]",
		strings.Repeat("a.", 70) + "a",
	}
	for _, key := range keys {
		_, err := prompt.Render("é {"+key+"} {alsomissing}", json.RawMessage(payload), prompt.Fail)
		var missing *prompt.MissingKeyError
		if !errors.As(err, &missing) || missing.Key != key || missing.Position != 3 || !slices.Contains(missing.Have, "file_path") {
			t.Errorf("{%s}: %v", key, err)
		}
	}
}

func TestMissingKeyMessage(t *testing.T) {
	_, err := prompt.Render("Read {flie_path}", json.RawMessage(`{"file_path":"x","a\nb":1}`), prompt.Fail)
	want := `missing template variable {flie_path} at position 5: the payload has "a\nb", "file_path"; add it to the payload, or write {{flie_path}} for literal braces`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	_, err = prompt.Render("{a}", nil, prompt.Fail)
	if err == nil || !strings.Contains(err.Error(), "the payload has no keys") {
		t.Errorf("got %v", err)
	}
	many := map[string]string{}
	for i := range 30 {
		many[strings.Repeat("k", 100+i)] = ""
	}
	encoded, _ := json.Marshal(many)
	_, err = prompt.Render("{a}", encoded, prompt.Fail)
	var missing *prompt.MissingKeyError
	if !errors.As(err, &missing) || len(missing.Have) != 20 || len(missing.Error()) > 2000 {
		t.Errorf("got %v", err)
	}
}

func TestMissingKeyNote(t *testing.T) {
	got, err := prompt.Render("{a} {b.c} {name} {a}", json.RawMessage(payload), prompt.Note)
	want := "{a} {b.c} n {a}\n\n[ERROR: Missing template variable: 'a']\n\n[ERROR: Missing template variable: 'b.c']"
	if err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestRenderedSizeIsCapped(t *testing.T) {
	value, _ := json.Marshal(map[string]string{"big": strings.Repeat("x", 1<<20), "eight": strings.Repeat("x", prompt.MaxRendered)})
	if _, err := prompt.Render(strings.Repeat("{big}", 1000), value, prompt.Fail); !errors.Is(err, prompt.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if got, err := prompt.Render("{eight}", value, prompt.Fail); err != nil || len(got) != prompt.MaxRendered {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if _, err := prompt.Render("{eight}.", value, prompt.Fail); !errors.Is(err, prompt.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if _, err := prompt.Render(strings.Repeat("x", prompt.MaxRendered+1), nil, prompt.Fail); !errors.Is(err, prompt.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestTimeIsLinear(t *testing.T) {
	const size = 1 << 20
	deep := strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)
	wide := `{"a":[` + strings.Repeat("0,", size) + `0]}`
	for _, c := range []struct{ piece, payload string }{
		{"{", ""}, {"{{", ""}, {"}", ""}, {"{{}", ""}, {"{a", ""}, {"{a.", ""}, {"{a[0", ""}, {"{{a}", ""}, {"{a}", ""},
		{"{" + strings.Repeat("a.", 60) + "a}", deep}, {"{a.1048575}", wide}, {"{a[5]}", wide},
	} {
		start := time.Now()
		_, err := prompt.Render(strings.Repeat(c.piece, size/len(c.piece)), json.RawMessage(c.payload), prompt.Note)
		if err != nil && !errors.Is(err, prompt.ErrTooLarge) {
			t.Errorf("%.20q: %v", c.piece, err)
		}
		// Anything but linear would take hours.
		if took := time.Since(start); took > 2*time.Minute {
			t.Errorf("%.20q took %v", c.piece, took)
		}
	}
}

// What Render does with a value must not depend on the value: a stand-in that
// is replaced afterwards gives the same text.
func FuzzRender(f *testing.F) {
	for _, seed := range []string{
		"{k}", "{{k}}", "{{{k}}}", "{payload.k} }} {{", `{"a":{k}}`, "{k.0} {k[0]} {k!r}", "{{ {{ {k} }} {k}", "{nobody}",
	} {
		f.Add(seed, "value {k} {{k}}")
	}
	f.Fuzz(func(t *testing.T, template, value string) {
		const standIn = "\u2603\u2603"
		if strings.Contains(template, standIn) || strings.Contains(template, "{payload}") || !utf8.ValidString(value) {
			return
		}
		got, err := renderK(template, value)
		plain, plainErr := renderK(template, standIn)
		if errors.Is(err, prompt.ErrTooLarge) || errors.Is(plainErr, prompt.ErrTooLarge) {
			return
		}
		if err != nil || plainErr != nil {
			t.Fatalf("Render(%q): %v, %v", template, err, plainErr)
		}
		if want := strings.ReplaceAll(plain, standIn, value); got != want {
			t.Errorf("Render(%q) with %q = %q, want %q", template, value, got, want)
		}
		if !strings.Contains(template, "{") && got != template {
			t.Errorf("Render(%q) = %q", template, got)
		}
	})
}

func renderK(template, value string) (string, error) {
	payload, err := json.Marshal(map[string]string{"k": value})
	if err != nil {
		return "", err
	}
	return prompt.Render(template, payload, prompt.Note)
}
