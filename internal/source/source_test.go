package source

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// seen is what a test compares of an item.
func seen(i Item) string { return fmt.Sprintf("%s %s %s", i.CustomID, i.Payload, i.Wrong) }

func all(t *testing.T, items iter.Seq2[Item, error]) (texts []string, places []Place, err error) {
	t.Helper()
	for item, err := range items {
		if err != nil {
			return texts, places, err
		}
		texts = append(texts, strings.TrimSpace(seen(item)))
		places = append(places, item.Next)
	}
	return texts, places, nil
}

var tree = fstest.MapFS{
	"b.txt": {}, "a/z.PDF": {}, "a/deep/er/x.pdf": {}, "a.pdf": {}, ".hidden/x.pdf": {}, "a/.y.pdf": {}, "c": {Mode: os.ModeNamedPipe},
}

func TestFiles(t *testing.T) {
	for _, c := range []struct {
		spec Source
		want string
	}{
		{Source{}, "a/deep/er/x.pdf a/z.PDF a.pdf b.txt"},
		{Source{Hidden: true}, ".hidden/x.pdf a/.y.pdf a/deep/er/x.pdf a/z.PDF a.pdf b.txt"},
		{Source{Glob: []string{"**/*.pdf"}}, "a/deep/er/x.pdf a.pdf"},
		{Source{Glob: []string{"*.pdf", "b*"}}, "a.pdf b.txt"},
		{Source{Glob: []string{"a/**"}, Exclude: []string{"a/deep/**"}}, "a/z.PDF"},
		{Source{Suffix: []string{".pdf"}}, "a/deep/er/x.pdf a/z.PDF a.pdf"},
		{Source{Limit: 2}, "a/deep/er/x.pdf a/z.PDF"},
		{Source{Glob: []string{"*.doc"}}, ""},
	} {
		var got []string
		for item, err := range c.spec.ReadDir(tree, "docs:", Place{}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, item.CustomID)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v, want %s", c.spec, got, c.want)
		}
	}
	texts, _, _ := all(t, Source{Limit: 1}.ReadDir(tree, "docs:in", Place{}))
	if len(texts) != 1 || texts[0] != `a/deep/er/x.pdf {"file_name":"x.pdf","file_path":"docs:in/a/deep/er/x.pdf"}` {
		t.Errorf("%v", texts)
	}
	if _, _, err := all(t, Source{}.ReadDir(os.DirFS("/does/not/exist"), "docs:", Place{})); !errors.Is(err, ErrBroken) {
		t.Errorf("no directory: %v", err)
	}
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name string
		spec Source
		text string
		want []string
		err  string
	}{
		{"csv", Source{Type: TypeCSV}, "name,sum\nAnn,1\n\"B,\"\"ob\n2\",\nC,3\n",
			[]string{`1 {"name":"Ann","sum":"1"}`, `2 {"name":"B,\"ob\n2","sum":""}`, `3 {"name":"C","sum":"3"}`}, ""},
		{"csv named", Source{Type: TypeCSV, CustomID: "id", Delimiter: ";"}, "\xef\xbb\xbfid;x\r\nk1;2\r\n;3",
			[]string{`k1 {"id":"k1","x":"2"}`, `2 {"id":"","x":"3"}`}, ""},
		{"csv short row", Source{Type: TypeCSV}, "a,b\n1\n1,2\n", []string{`1  the row has 1 fields; the first row names 2 columns`, `2 {"a":"1","b":"2"}`}, ""},
		{"csv latin", Source{Type: TypeCSV}, "a\n\xe9\n", []string{`1  the column "a" is not UTF-8`}, ""},
		{"csv empty", Source{Type: TypeCSV}, "", nil, "the file is empty"},
		{"csv header only", Source{Type: TypeCSV}, "a,b\n", nil, ""},
		{"csv twice", Source{Type: TypeCSV}, "a,a\n", nil, `two columns are called "a"`},
		{"csv quote", Source{Type: TypeCSV}, "a\nx\"y\n", nil, "line 2"},
		{"csv no column", Source{Type: TypeCSV, CustomID: "id"}, "a\n1\n", nil, `no column "id"`},
		{"json", Source{Type: TypeJSON}, ` [ {"a": 1e400}, "x", [1] ] `, []string{`1 {"a": 1e400}`, `2 {"item":"x"}`, `3 {"item":[1]}`}, ""},
		{"json inside", Source{Type: TypeJSON, Items: "/data/0/rows", CustomID: "id"}, `{"rows":[1],"data":[{"x":[],"rows":[{"id":7},{"id":"b"},{}]}]}`,
			[]string{`7 {"id":7}`, `b {"id":"b"}`, `3 {} there is no text or number in the field "id" to take custom_id from`}, ""},
		{"json none", Source{Type: TypeJSON, Items: "/rows"}, `{"rows":{"a":[1]}}`, nil, "no array at /rows"},
		{"json cut", Source{Type: TypeJSON}, `[{"a":1},{"a"`, []string{`1 {"a":1}`}, "unexpected EOF"},
		{"json broken", Source{Type: TypeJSON}, `[1,,2]`, []string{`1 {"item":1}`}, "not JSON"},
		{"json empty", Source{Type: TypeJSON}, `[]`, nil, ""},
		{"jsonl", Source{Type: TypeJSONL}, "{\"a\":1}\r\n\n  \n5\n{x}\n{\"b\":2}", []string{`1 {"a":1}`, `2 {"item":5}`, `3  the line is not JSON`, `4 {"b":2}`}, ""},
		{"jsonl limit", Source{Type: TypeJSONL, Limit: 2}, "1\n2\n3\n", []string{`1 {"item":1}`, `2 {"item":2}`}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, places, err := all(t, c.spec.Read(strings.NewReader(c.text), Place{}))
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if (err == nil) != (c.err == "") || err != nil && (!errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			for i, place := range places { // from each place on the rest comes, the same
				rest, restPlaces, _ := all(t, c.spec.Read(strings.NewReader(c.text), place))
				if !slices.Equal(rest, got[i+1:]) || len(rest) > 0 && restPlaces[0] != places[i+1] {
					t.Errorf("from %+v on: %q %+v, want %q", place, rest, restPlaces, got[i+1:])
				}
			}
		})
	}
	_, places, _ := all(t, Source{Type: TypeJSONL}.Read(strings.NewReader("1\n\n2\n"), Place{}))
	if places[1].Line != 3 || places[1].Count != 2 {
		t.Errorf("%+v", places)
	}
}

func TestFilesGoOn(t *testing.T) {
	got, places, _ := all(t, Source{}.ReadDir(tree, "docs:", Place{}))
	for i, place := range places {
		rest, _, err := all(t, Source{}.ReadDir(tree, "docs:", place))
		if err != nil || !slices.Equal(rest, got[i+1:]) {
			t.Errorf("after %s: %v %v", place.After, rest, err)
		}
	}
}

func TestNames(t *testing.T) {
	names := func(yield func(string, error) bool) {
		for _, name := range []string{"a-b.txt", "a/.x.txt", "a/c.txt", "a/d.png", "b.txt"} {
			if !yield(name, nil) {
				return
			}
		}
	}
	s := Source{Suffix: []string{".txt"}}
	got, places, err := all(t, s.ReadNames(names, "bucket:in", Place{}))
	if err != nil || len(got) != 3 || !strings.HasPrefix(got[1], `a/c.txt {"file_name":"c.txt","file_path":"bucket:in/a/c.txt"}`) {
		t.Fatalf("%v %v", got, err)
	}
	for i, place := range places {
		if rest, _, err := all(t, s.ReadNames(names, "bucket:in", place)); err != nil || !slices.Equal(rest, got[i+1:]) {
			t.Errorf("after %s: %v %v", place.After, rest, err)
		}
	}
}

func TestLongLines(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	got, _, err := all(t, Source{Type: TypeJSONL}.Read(strings.NewReader("1\n\""+long+"\"\n2\n"), Place{}))
	if err != nil || len(got) != 3 || len(got[1]) < 200_000 {
		t.Errorf("%d %v", len(got), err)
	}
	if _, _, err := all(t, Source{Type: TypeJSONL}.Read(strings.NewReader(strings.Repeat(" ", MaxLine+1)), Place{})); !errors.Is(err,
		ErrBroken) {
		t.Errorf("an endless line: %v", err)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		spec  Source
		field string
	}{
		{Source{Type: TypeFiles, Glob: []string{"**/*.pdf", "[a"}}, "glob/1"},
		{Source{Type: TypeCSV, Glob: []string{"*"}}, "glob"},
		{Source{Type: TypeJSONL, Delimiter: ";"}, "delimiter"},
		{Source{Type: TypeCSV, Delimiter: "\n"}, "delimiter"},
		{Source{Type: TypeJSON, Items: "rows"}, "items"},
		{Source{Type: TypeFiles, CustomID: "x"}, "custom_id"},
		{Source{Type: TypeJSON, Items: "/rows", CustomID: "id", Limit: 3}, ""},
		{Source{Type: TypeCSV, Delimiter: "\t"}, ""},
	} {
		if field, detail := c.spec.Check(); field != c.field {
			t.Errorf("%+v: %q %q, want %q", c.spec, field, detail, c.field)
		}
	}
}
