package strictjson

import "testing"

func TestCutField(t *testing.T) {
	t.Parallel()
	for object, want := range map[string][2]string{
		`{"a":1}`:                              {"", `{"a":1}`},
		`{"custom_id":"x","a":1}`:              {`"x"`, `{"a":1}`},
		`{"a":1,"custom_id":"x"}`:              {`"x"`, `{"a":1}`},
		`{"cust\u006fm\u005fid":"x","a":1}`:    {`"x"`, `{"a":1}`},
		`{"a":"custom_id"}`:                    {"", `{"a":"custom_id"}`},
		`{"a":{"custom_id":"x"}}`:              {"", `{"a":{"custom_id":"x"}}`},
		`null`:                                 {"", `{}`},
		" {\"b\":2}":                           {"", " {\"b\":2}"},
		`{"a":1,"custom_id":"x","b":"custom"}`: {`"x"`, `{"a":1,"b":"custom"}`},
	} {
		value, rest, err := CutField([]byte(object), "custom_id")
		if err != nil || string(value) != want[0] || string(rest) != want[1] {
			t.Errorf("%s: %s and %s, %v; want %s and %s", object, value, rest, err, want[0], want[1])
		}
	}
	for _, other := range []string{`[]`, `"custom_id"`, `1`, ``} {
		if _, _, err := CutField([]byte(other), "custom_id"); err == nil {
			t.Errorf("%q is an object", other)
		}
	}
}
