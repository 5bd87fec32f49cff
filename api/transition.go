package api

import (
	"github.com/google/uuid"

	"piecework/api/problem"
	"piecework/api/query"
	"piecework/api/view"
)

// The names under which the files that say what a unit and a batch must be know
// problems, until these move to jobs.
type (
	ProblemError = problem.Field
	Problem      = problem.Problem
	ByID         = query.ByID
	ByFilter     = query.Units
	unitItem     = view.UnitItem
)

func parseID(text string) (uuid.UUID, error) { return query.ID(text) }

func parseAfter(text string) (uuid.UUID, error) { return query.After(text) }

func parseStates[S ~string](text string, known []S) ([]S, error) { return query.States(text, known) }

func joined[S ~string](words []S) string { return query.Joined(words) }

func newProblem(status int, detail string, fields ...ProblemError) *problem.Problem {
	return problem.New(status, detail, fields...)
}

func newFieldsProblem(status int, fields ...ProblemError) *problem.Problem {
	return problem.Fields(status, fields...)
}

func problemOf(err error) *problem.Problem { return problem.Of(err) }

func badParameter(name, detail string) *problem.Problem { return problem.Parameter(name, detail) }
