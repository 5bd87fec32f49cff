package work

import (
	"strings"
	"testing"
	"time"
)

func TestScheduleNamesTimes(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC) // the night before summer time in Berlin
	for _, test := range []struct{ cron, zone, want string }{
		{"0 6 * * *", "UTC", "2026-03-29T06:00:00Z"},
		{"0 6 * * *", "Europe/Berlin", "2026-03-29T04:00:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2026-03-29T01:30:00Z"}, // 02:30 is not there that night
		{"@hourly", "UTC", "2026-03-28T13:00:00Z"},
		{"0 0 29 2 *", "UTC", "2028-02-29T00:00:00Z"},
	} {
		s := Schedule{Cron: test.cron, Timezone: test.zone}
		if got, err := s.After(at); err != nil || got.Format(time.RFC3339) != test.want {
			t.Errorf("%s in %s: %s, error %v, want %s", test.cron, test.zone, got, err, test.want)
		}
	}
	for _, test := range []struct{ cron, zone, words string }{
		{"* * * *", "UTC", "five fields"}, {"", "UTC", "five fields"}, {"TZ=UTC", "UTC", "timezone"}, {"99 * * * *", "UTC", "five fields"},
		{"0 0 31 2 *", "UTC", "no time"}, {"@daily", "Mars/Olympus", "no time zone"},
		{"@daily", "Local", "no time zone"}, {"@every 0s", "UTC", "at least one"}, {"@every -5s", "UTC", "at least one"},
		{"@every 1.5s", "UTC", "whole seconds"},
		{"0 " + strings.Repeat("1,", 1000) + "1 * * *", "UTC", "longer than"},
	} {
		s := Schedule{Cron: test.cron, Timezone: test.zone}
		if _, err := s.After(at); err == nil || !strings.Contains(err.Error(), test.words) {
			t.Errorf("%s in %s: %v, want %q", test.cron, test.zone, err, test.words)
		}
	}
}

// A nightly schedule makes one unit a night, also when the clocks change.
func TestScheduleWhenClocksChange(t *testing.T) {
	t.Parallel()
	spring, autumn := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC), time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		cron, zone string
		at         time.Time
		want       string
	}{
		{"30 2 * * *", "Europe/Berlin", spring, "29 03:30, 30 02:30"},
		{"0,30 2 * * *", "Europe/Berlin", spring, "29 03:00, 29 03:30, 30 02:00"},
		{"30 2,3 * * *", "Europe/Berlin", spring, "29 03:30, 30 02:30"},
		{"30 2 29 3 *", "Europe/Berlin", spring.AddDate(0, -8, 0), "29 03:30, 29 02:30"},
		{"0 3 * * *", "Europe/Berlin", spring, "29 03:00, 30 03:00"},
		{"0 * * * *", "Europe/Berlin", spring.Add(12 * time.Hour), "29 03:00, 29 04:00"},
		{"0 0-23 * * *", "Europe/Berlin", spring.Add(12 * time.Hour), "29 03:00, 29 04:00"},
		{"0 */2 * * *", "Europe/Berlin", spring.Add(12 * time.Hour), "29 03:00, 29 04:00"},
		{"30 2 * * *", "Europe/Berlin", autumn, "25 02:30, 26 02:30"},
		{"0,30 2 * * *", "Europe/Berlin", autumn, "25 02:00, 25 02:30, 26 02:00"},
		{"0 3 * * *", "Europe/Berlin", autumn, "25 03:00, 26 03:00"},
		{"0 * * * *", "Europe/Berlin", autumn.Add(11 * time.Hour), "25 02:00, 25 02:00, 25 03:00"},
		{"30 0-23 * * *", "Europe/Berlin", autumn.Add(11 * time.Hour), "25 01:30, 25 02:30, 25 02:30, 25 03:30"},
		{"15 2 * * *", "Australia/Lord_Howe", time.Date(2026, 10, 3, 0, 0, 0, 0, time.UTC), "04 02:45, 05 02:15"},
		{"45 1 * * *", "Australia/Lord_Howe", time.Date(2026, 4, 4, 0, 0, 0, 0, time.UTC), "05 01:45, 06 01:45"},
		{"30 2 * * *", "UTC", autumn, "25 02:30, 26 02:30"},
	} {
		s := Schedule{Cron: test.cron, Timezone: test.zone}
		zone, err := time.LoadLocation(test.zone)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for at := test.at; len(got) < len(strings.Split(test.want, ", ")); {
			if at, err = s.After(at); err != nil {
				t.Fatal(err)
			}
			got = append(got, at.In(zone).Format("02 15:04"))
		}
		if strings.Join(got, ", ") != test.want {
			t.Errorf("%s in %s: %v, want %s", test.cron, test.zone, got, test.want)
		}
	}
}

func TestScheduleCatchesUp(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 30, 0, time.UTC)
	noon, one := now.Truncate(time.Hour), now.Truncate(time.Hour).Add(time.Hour)
	year := now.AddDate(-1, 0, 0)
	for name, test := range map[string]struct {
		schedule Schedule
		due      int
		last     time.Time
		next     time.Time
	}{
		"not due":             {Schedule{Cron: "@hourly", NextAt: one}, 0, time.Time{}, one},
		"on time":             {Schedule{Cron: "@hourly", CatchUp: CatchUpSkip, NextAt: noon}, 1, noon, one},
		"late, skip, on time": {Schedule{Cron: "@hourly", CatchUp: CatchUpSkip, NextAt: noon.Add(-5 * time.Hour)}, 1, noon, one},
		"late, skip": {Schedule{Cron: "0 10 * * *", CatchUp: CatchUpSkip, NextAt: noon.Add(-2 * time.Hour)}, 0, time.Time{},
			noon.Add(22 * time.Hour)},
		"late, one": {Schedule{Cron: "0 10 * * *", CatchUp: CatchUpOne, NextAt: noon.Add(-50 * time.Hour)}, 1,
			noon.Add(-2 * time.Hour), noon.Add(22 * time.Hour)},
		"late, all":         {Schedule{Cron: "@hourly", CatchUp: CatchUpAll, NextAt: noon.Add(-5 * time.Hour)}, 6, noon, one},
		"a year of seconds": {Schedule{Cron: "@every 1s", CatchUp: CatchUpOne, NextAt: year}, 1, now, now.Add(time.Second)},
		"many, all": {Schedule{Cron: "@every 1s", CatchUp: CatchUpAll, NextAt: year}, MaxCatchUp, year.Add(99 * time.Second),
			year.Add(100 * time.Second)},
	} {
		test.schedule.Timezone = "UTC"
		due, next, err := test.schedule.Due(now)
		if err != nil || len(due) != test.due || !next.Equal(test.next) || len(due) > 0 && !due[len(due)-1].Equal(test.last) {
			t.Errorf("%s: due %v, next %s, error %v", name, due, next, err)
		}
	}
}
