package work

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestSeconds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Seconds{`90`: 90, `1.5`: 1.5, `"90"`: 90, `"90s"`: 90, `"1h30m"`: 5400, `"250ms"`: 0.25, `-3`: -3} {
		var got Seconds
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %v, error %v", text, got, err)
		}
	}
	for _, text := range []string{`"soon"`, `""`, `true`, `[1]`, `{}`, `"NaN"`, `"Inf"`, `"-infinity"`, `"1e999"`} {
		var got Seconds
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s was taken for %v", text, got)
		}
	}
	if got := Seconds(1.5).Duration(); got != 1500*time.Millisecond {
		t.Errorf("1.5 is %s", got)
	}
	if text, err := json.Marshal(Seconds(90)); err != nil || string(text) != "90" {
		t.Errorf("90 is written %s, error %v", text, err)
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	if len(Classes()) != len(classes) {
		t.Errorf("%d classes are listed, %d have a rule", len(Classes()), len(classes))
	}
	for _, c := range Classes() {
		if _, ok := classes[c]; !ok || c.Advice() == "" {
			t.Errorf("%s has no rule or no advice", c)
		}
	}
	for class, want := range map[Class]Follow{
		ClassInfra: FollowRetry, ClassCrash: FollowRetry, ClassRateLimit: FollowWait, ClassTimeout: FollowRetryIfAsked,
		ClassHang: FollowRetryIfAsked, ClassAuth: FollowPause, ClassBilling: FollowPause, ClassRefusal: FollowFail, "unheard of": FollowFail,
	} {
		if got := class.Follow(); got != want {
			t.Errorf("%s is followed by %d, want %d", class, got, want)
		}
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	zero, five := 0, 5
	for _, test := range []struct {
		asked *int
		class Class
		want  int
	}{
		{nil, ClassInfra, DefaultMaxRetries}, {&zero, ClassInfra, 0}, {&five, ClassInfra, 5},
		{nil, ClassTimeout, 0}, {&five, ClassTimeout, 5}, {&five, ClassAuth, 0},
	} {
		if got := (&Spec{MaxRetries: test.asked}).Retries(test.class); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

func TestMoves(t *testing.T) {
	t.Parallel()
	for from, tos := range moves {
		for _, to := range tos {
			if !slices.Contains(States, from) || !slices.Contains(States, to) || from == to {
				t.Errorf("from %s to %s", from, to)
			}
			if from.Final() && to != Queued && to != Waiting {
				t.Errorf("the final state %s leads to %s", from, to)
			}
		}
	}
	if len(moves[Succeeded]) != 0 || CanMove(Queued, Succeeded) || !CanMove(Queued, Running) {
		t.Error("what succeeded stays so, and nothing succeeds without running")
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for limit := range 8 {
		got, cut := Cut("aé漢b", limit)
		if len(got) > limit || !utf8.ValidString(got) || cut != (limit < 7) {
			t.Errorf("cut at %d: %q, %t", limit, got, cut)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	if got := Clean("a\x00b\xff\xfec é"); got != "ab\uFFFDc é" {
		t.Errorf("%q", got)
	}
}

func TestAttachments(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string][]string{
		`{"file_path":"a","file_paths":["b","c"]}`: {"a", "b", "c"},
		`{"file_paths":"b","file_path":["a"]}`:     nil,
		`{"file_path":""}`:                         nil,
		`[]`:                                       nil,
		``:                                         nil,
	} {
		if got := (&Spec{Payload: json.RawMessage(payload)}).Attachments(); !slices.Equal(got, want) {
			t.Errorf("%s: %q", payload, got)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	away := &Unavailable{What: "postgres", Err: gone}
	if !errors.Is(away, gone) || away.Error() != "postgres is unavailable: gone" {
		t.Errorf("%v", away)
	}
	if got := Invalidf("#/timeout", "%d is too long", 9).Error(); got != "#/timeout: 9 is too long" {
		t.Errorf("%s", got)
	}
	if got := Fail(ClassAuth, "no key").Error(); got != "auth: no key" {
		t.Errorf("%s", got)
	}
}

func TestVisible(t *testing.T) {
	t.Parallel()
	const text = "Größe 5 µm → ok\n\t“quoted” 👩‍🔧 中文"
	if got := Visible(text); got != text {
		t.Errorf("changed %q to %q", text, got)
	}
	if got := Visible("\x1b[2J\r\u009b\u202e\u200b\u2028\u2066\U000E0041\x7f\xff"); got != "␛[2J␍"+strings.Repeat("\uFFFD", 8) {
		t.Errorf("got %q", got)
	}
}

func TestCachedShare(t *testing.T) {
	for want, u := range map[float64]Usage{
		0: {}, 0.75: {InputTokens: 10, CacheReadTokens: 75, CacheCreationTokens: 15, OutputTokens: 500}, 1: {CacheReadTokens: 3},
	} {
		if got := u.CachedShare(); got != want {
			t.Errorf("%+v: %g, not %g", u, got, want)
		}
	}
}
