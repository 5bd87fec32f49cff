package chaos

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"
)

// The scenarios of `make faults`: each breaks one thing, prints what came of it
// in one line, and fails when a promise is broken.
//
//	scenario_test.go   the list
//	stage_test.go      what they play on
//	workers_test.go    worker processes that die, restart, or are killed by a unit
//	redis_test.go      Redis forgets, is away, refuses writes
//	postgres_test.go   Postgres restarts
//	silent_test.go     Postgres says nothing any more, to all or to one; its clock is set
//	scheduled_test.go  very many units for one second
var (
	scenarios = flag.Bool("scenarios", false, "play the scenarios that -only names, all when it is empty")
	length    = flag.Duration("length", 0, "of what a scenario takes: Redis's absence, an agent's work; 0: as promised")
	many      = flag.Int("many", 0, "units of a scenario; 0: as promised")
)

type scenario struct {
	name string
	play func(t *testing.T)
}

var cast = []scenario{
	{"worker-killed", workerKilled},
	{"worker-killed-short-lease", workerKilledShortLease},
	{"container-killed", containerKilled},
	{"machine-lost", machineLost},
	{"machine-lost-short-lease", machineLostShortLease},
	{"redis-flushed", redisFlushed},
	{"redis-lost", redisLost},
	{"redis-down", redisDown},
	{"redis-readonly", redisReadonly},
	{"postgres-restarts", postgresRestarts},
	{"postgres-half-open", postgresHalfOpen},
	{"postgres-frozen", postgresFrozen},
	{"clock-step", clockStep},
	{"cut-off", cutOff},
	{"rolling-restart", rollingRestart},
	{"poison", poison},
	{"scheduled", scheduled},
}

func TestScenarios(t *testing.T) {
	if !*scenarios {
		t.Skip("takes half an hour; run it with make faults")
	}
	wanted := strings.FieldsFunc(*only, func(r rune) bool { return r == ',' })
	for _, name := range wanted {
		if !slices.ContainsFunc(cast, func(c scenario) bool { return c.name == name }) {
			t.Errorf("there is no scenario %q", name)
		}
	}
	for _, c := range cast {
		if len(wanted) == 0 || slices.Contains(wanted, c.name) {
			t.Run(c.name, c.play)
		}
	}
}

func orElse[T comparable](given, usual T) T {
	var none T
	if given == none {
		return usual
	}
	return given
}

func quantile(of []time.Duration, q float64) time.Duration {
	slices.Sort(of)
	return of[int(q*float64(len(of)-1)+0.5)]
}
