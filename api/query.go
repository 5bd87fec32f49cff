package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"piecework/api/problem"
)

// checkQuery refuses query parameters that the operation does not know, and
// those that come twice where one counts: huma would take the first and drop
// the rest. Empty ones count as left out.
func (a *API) checkQuery(ctx huma.Context, next func(huma.Context)) {
	u := ctx.URL()
	known, repeatable := queryNames(ctx.Operation())
	query := u.Query()
	var errs []problem.Field
	for name, values := range query {
		switch {
		case !slices.Contains(known, name):
			errs = append(errs, problem.Field{Parameter: name, Detail: unknownParameter(name, known)})
		case slices.Contains(repeatable, name):
			if slices.Contains(values, "") {
				errs = append(errs, problem.Field{Parameter: name, Detail: "is empty: give it a value or leave it out"})
			}
		case len(values) > 1:
			errs = append(errs, problem.Field{Parameter: name, Detail: "is there twice: give it once"})
		}
	}
	if len(errs) == 0 {
		next(ctx)
		return
	}
	slices.SortFunc(errs, func(a, b problem.Field) int { return strings.Compare(a.Parameter, b.Parameter) })
	a.refuse(ctx, problem.Fields(http.StatusUnprocessableEntity, errs...))
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
