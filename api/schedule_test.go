package api

import (
	"encoding/json"
	"testing"
	"time"

	"piecework/internal/work"
)

func (f *front) schedule(name string) work.Schedule {
	f.t.Helper()
	var s work.Schedule
	if err := json.Unmarshal(f.get("/schedules/"+name).is(200).body, &s); err != nil {
		f.t.Fatal(err)
	}
	return s
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	const body = `{"cron":"0 6 * * *","timezone":"Europe/Berlin","unit":{"backend":"mock","prompt":"Report {what}","payload":{"what":"all"}}}`
	f.do("PUT", "/schedules/daily", body).is(200)
	s := f.schedule("daily")
	if s.Title != "Report all" || s.CatchUp != work.CatchUpOne || !s.NextAt.After(time.Now()) || s.Unit.Timeout != work.DefaultTimeout ||
		s.Unit.Backend != "mock" {
		t.Errorf("%+v", s)
	}
	f.do("PUT", "/schedules/daily", `{"cron":"@hourly","catch_up":"all","paused":true,"unit":{"backend":"mock","prompt":"x"}}`).is(200)
	if s = f.schedule("daily"); s.Cron != "@hourly" || s.Timezone != "UTC" || !s.Paused {
		t.Errorf("%+v", s)
	}
	// What is read of a schedule's unit can be sent again.
	f.do("PUT", "/schedules/daily", `{"cron":"@hourly","unit":{"backend":"mock","prompt":"x","cache":"24h"}}`).is(200)
	unit, err := json.Marshal(f.get("/schedules/daily").is(200).fields()["unit"])
	if err != nil {
		t.Fatal(err)
	}
	f.do("PUT", "/schedules/daily", `{"cron":"@hourly","unit":`+string(unit)+`}`).is(200)
	if s = f.schedule("daily"); s.Unit.CacheTTL != 24*3600 {
		t.Errorf("%+v", s)
	}
	f.do("PUT", "/schedules/daily", `{"cron":"@hourly","unit":{"backend":"mock","prompt":"x","cache":1,"cache_ttl":1}}`).refused(422, "#/unit/cache_ttl", "either")
	var list struct{ Items []work.Schedule }
	if err := json.Unmarshal(f.get("/schedules").is(200).body, &list); err != nil || len(list.Items) != 1 {
		t.Errorf("%+v, error %v", list, err)
	}
	var u work.Unit
	if err := json.Unmarshal(f.do("POST", "/schedules/daily/run", "").is(202).body, &u); err != nil || u.Prompt != "x" || u.State != work.Queued {
		t.Errorf("%+v, error %v", u, err)
	}
	f.do("DELETE", "/schedules/daily", "").is(204)
	for _, missing := range []*answer{f.get("/schedules/daily"), f.do("DELETE", "/schedules/daily", ""), f.do("POST", "/schedules/daily/run", "")} {
		missing.refused(404, "", "")
	}
}

func TestBadSchedulesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	unit := `"unit":{"backend":"mock","prompt":"x"}`
	for _, test := range []struct{ name, body, pointer, words string }{
		{"Daily", `{"cron":"@daily",` + unit + `}`, "#/name", "lower-case"},
		{"d", `{"cron":"every day",` + unit + `}`, "#/cron", "five fields"},
		{"d", `{"cron":"@daily","timezone":"Berlin",` + unit + `}`, "#/timezone", "Europe/Berlin"},
		{"d", `{"cron":"@daily","catch_up":"some",` + unit + `}`, "#/catch_up", "skip"},
		{"d", `{"cron":"@daily"}`, "#/unit", "missing"},
		{"d", `{"cron":"@daily","unit":{"backend":"gpt","prompt":"x"}}`, "#/unit/backend", "no backend"},
		{"d", `{"cron":"@daily","unit":{"backend":"mock","prompt":"x","delay":5}}`, "#/unit", "delay"},
	} {
		f.do("PUT", "/schedules/"+test.name, test.body).refused(422, test.pointer, test.words)
	}
}
