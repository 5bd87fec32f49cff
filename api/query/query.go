// Package query reads what a request says besides its body: ids in the path,
// filters and cursors in the query.
package query

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"piecework/api/problem"
	"piecework/internal/work"
	"piecework/store"
)

// States reads states with commas between.
func States[S ~string](text string, known []S) ([]S, error) {
	var states []S
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		if !slices.Contains(known, S(part)) {
			return nil, problem.Parameter("status", fmt.Sprintf("there is no status %.100q; there are %s", part, Joined(known)))
		}
		states = append(states, S(part))
	}
	return states, nil
}

// Joined is words with commas between, for people.
func Joined[S ~string](words []S) string {
	text := make([]string, len(words))
	for i, w := range words {
		text[i] = string(w)
	}
	return strings.Join(text, ", ")
}

// After reads the cursor of a list, the next of the page before; Nil: from the start.
func After(text string) (uuid.UUID, error) {
	if text == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return id, problem.Parameter("after", "must be the next of the page before")
	}
	return id, nil
}

// Labels reads labels written as name:value.
func Labels(given []string) (map[string]string, error) {
	if len(given) == 0 {
		return nil, nil
	}
	labels := map[string]string{}
	for _, label := range given {
		name, value, ok := strings.Cut(label, ":")
		if !ok {
			return nil, problem.Parameter("label", "write a label as name:value")
		}
		if had, again := labels[name]; again && had != value {
			return nil, problem.Parameter("label", fmt.Sprintf("%.100q cannot have two values at once", name))
		}
		labels[name] = value
	}
	return labels, nil
}

// ByID is the id of one thing in the path.
type ByID struct {
	ID string `path:"id" doc:"A UUID"`
}

// ID answers for an id that is no UUID as for one that is not there.
func ID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, work.ErrNotFound
	}
	return id, nil
}

// Units chooses units; what is left out chooses all.
type Units struct {
	Status  string   `query:"status" doc:"One or more states, separated by commas" example:"queued,running"`
	Worker  string   `query:"worker"`
	Backend string   `query:"backend"`
	Batch   string   `query:"batch" doc:"The id of a batch"`
	Class   string   `query:"class" doc:"The class of the error" example:"rate_limit"`
	Label   []string `query:"label,explode" doc:"name:value; several must all fit" example:"team:legal"`
	Search  string   `query:"q" doc:"Part of the task, in any case" maxLength:"200"`
}

func (in *Units) Filter() (f store.UnitFilter, err error) {
	f = store.UnitFilter{Tenant: work.DefaultTenant, Backend: in.Backend, Worker: in.Worker, Class: work.Class(in.Class), Search: in.Search}
	if in.Class != "" && !slices.Contains(work.Classes(), f.Class) {
		return f, problem.Parameter("class", fmt.Sprintf("there is no class %.100q; there are %s", in.Class, Joined(work.Classes())))
	}
	if f.States, err = States(in.Status, work.States); err != nil {
		return f, err
	}
	if in.Batch != "" {
		if f.Batch, err = uuid.Parse(in.Batch); err != nil {
			return f, problem.Parameter("batch", "is no id of a batch")
		}
	}
	f.Labels, err = Labels(in.Label)
	return f, err
}
