package main

import (
	"context"
	"time"
)

// row is a piece of work that several subjects do, one after the other.
type row struct {
	name, title string
	subjects    []subject
	goals       []goal
	most        int           // repetitions; 0: as many as asked for
	limit       time.Duration // of one subject; 0: ten minutes
}

// subject is who does it, and how.
type subject struct {
	name string
	kind kind
	run  func(ctx context.Context, s *stage) (sample, error)
}

// kind says what a subject's database holds before.
type kind int

const (
	empty kind = iota
	product
	productPackages // the product's packages in this program: no binary can be chosen
	riverTables
)

// goal is what a figure is to be: alone, or as a multiple of another subject's in
// the same repetition.
type goal struct {
	figure  string
	of, to  string // without to, the figure itself
	atLeast float64
	atMost  float64 // 0: there is no limit
}

// The rows, in the order in which they are measured and told.
func allRows() []row {
	return []row{
		acceptRow(), acceptOneRow(), storeRow(), bulkRow(), drainRow(), latencyRow(), lifeRow(),
		batchRow(), overviewRow(), idleRow(), limitsRow(),
	}
}

// byChild is a subject that one child does; settings.Units is a guess.
func byChild(role, job string, settings childSettings) func(context.Context, *stage) (sample, error) {
	return func(ctx context.Context, s *stage) (sample, error) {
		settings := settings
		settings.Units = s.paced(settings.Units)
		return s.measureJob(ctx, role, job, settings)
	}
}

// byChildFixed is the same with so many units.
func byChildFixed(role, job string, settings childSettings) func(context.Context, *stage) (sample, error) {
	return func(ctx context.Context, s *stage) (sample, error) {
		settings := settings
		settings.Units = s.units(settings.Units)
		return s.measureJob(ctx, role, job, settings)
	}
}

func (s *stage) measureJob(ctx context.Context, role, job string, settings childSettings) (sample, error) {
	settings.Database, settings.Redis = s.database, s.queue.URL
	p, err := s.startChild(role, job, settings)
	if err != nil {
		return sample{}, err
	}
	return s.measureChild(ctx, p)
}
