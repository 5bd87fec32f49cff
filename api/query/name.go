package query

import (
	"regexp"
	"slices"

	"github.com/danielgtaylor/huma/v2"
)

// ByName is the name of one thing in the path.
type ByName struct {
	Name string `path:"name"`
}

var Name = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

func Blank(ctx huma.Context) (errs []error) {
	u := ctx.URL()
	for name, values := range u.Query() {
		if slices.Contains(values, "") {
			errs = append(errs, &huma.ErrorDetail{Location: "query." + name, Message: "is empty: give it a value or leave it out"})
		}
	}
	return errs
}
