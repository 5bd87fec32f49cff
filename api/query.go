package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
)

// checkQuery refuses query parameters that the operation does not know, and
// those that come twice where one counts: huma would take the first and drop
// the rest. Empty ones count as left out.
func (a *API) checkQuery(ctx huma.Context, next func(huma.Context)) {
	u := ctx.URL()
	known, repeatable := queryNames(ctx.Operation())
	query := u.Query()
	var errs []ProblemError
	for name, values := range query {
		switch {
		case !slices.Contains(known, name):
			errs = append(errs, ProblemError{Parameter: name, Detail: unknownParameter(name, known)})
		case slices.Contains(repeatable, name):
			if slices.Contains(values, "") {
				errs = append(errs, ProblemError{Parameter: name, Detail: "is empty: give it a value or leave it out"})
			}
		case len(values) > 1:
			errs = append(errs, ProblemError{Parameter: name, Detail: "is there twice: give it once"})
		}
	}
	if len(errs) == 0 {
		next(ctx)
		return
	}
	slices.SortFunc(errs, func(a, b ProblemError) int { return strings.Compare(a.Parameter, b.Parameter) })
	a.refuse(ctx, newFieldsProblem(http.StatusUnprocessableEntity, errs...))
}

// queryNames are the query parameters of an operation, and those among them
// that may come more than once.
func queryNames(op *huma.Operation) (known, repeatable []string) {
	for _, p := range op.Parameters {
		if p.In != "query" {
			continue
		}
		known = append(known, p.Name)
		if p.Schema.Type == huma.TypeArray {
			repeatable = append(repeatable, p.Name)
		}
	}
	return known, repeatable
}

func unknownParameter(name string, known []string) string {
	if len(known) == 0 {
		return fmt.Sprintf("there is no query parameter %.100q; this path takes none", name)
	}
	return fmt.Sprintf("there is no query parameter %.100q; this path takes %s", name, strings.Join(known, ", "))
}

func badParameter(name, detail string) *Problem {
	return newFieldsProblem(http.StatusUnprocessableEntity, ProblemError{Parameter: name, Detail: detail})
}

func parseStates[S ~string](text string, known []S) ([]S, error) {
	var states []S
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		if !slices.Contains(known, S(part)) {
			return nil, badParameter("status", fmt.Sprintf("there is no status %.100q; there are %s", part, joined(known)))
		}
		states = append(states, S(part))
	}
	return states, nil
}

func joined[S ~string](words []S) string {
	text := make([]string, len(words))
	for i, w := range words {
		text[i] = string(w)
	}
	return strings.Join(text, ", ")
}

func parseAfter(text string) (uuid.UUID, error) {
	if text == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return id, badParameter("after", "must be the next of the page before")
	}
	return id, nil
}

func parseLabels(given []string) (map[string]string, error) {
	if len(given) == 0 {
		return nil, nil
	}
	labels := map[string]string{}
	for _, label := range given {
		name, value, ok := strings.Cut(label, ":")
		if !ok {
			return nil, badParameter("label", "write a label as name:value")
		}
		if had, again := labels[name]; again && had != value {
			return nil, badParameter("label", fmt.Sprintf("%.100q cannot have two values at once", name))
		}
		labels[name] = value
	}
	return labels, nil
}
