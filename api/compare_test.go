package api

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

func TestComparePage(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	one, two := f.submit(mock("")), f.submit(mock(`,"model":"large"`))
	first := f.run(one, "It ends in May.", step(1, transcript.Reasoning, "thinks"))
	f.run(two, "It ends in June.", step(1, transcript.Reasoning, "thinks"), step(2, transcript.UserText, "more"))
	never := f.submit(mock(""))
	both := []string{"It ends in <b>May</b>.", "It ends in <b>June</b>.", "the same in both", "only in the second", "rendered"}
	f.get("/compare?a=" + one.String() + "&b=" + two.String()).is(200).has(both...)
	f.get("/compare?a=" + first.RunID.String() + "&b=" + two.String()).is(200).has(both...)
	f.get("/compare?a="+never.String()+"&b="+two.String()).is(200).has("which has not run yet", "It ends in June.")
	f.get("/compare?a=" + one.String() + "&b=" + one.String()).is(200).has("the same in both")
	f.get("/units/" + one.String()).has(`href="/compare?a=` + first.RunID.String() + `"`)

	// Without a second there is a choice, the unit's other runs first.
	f.get("/compare").is(200).has("Begin with", `href="/compare?a=`+one.String()+`"`)
	page := string(f.get("/compare?a="+one.String()).is(200).has("Compare it with", `href="/compare?a=`+one.String()+`&amp;b=`+two.String()+`"`).body)
	if strings.Contains(page, `b=`+one.String()) {
		t.Error("a unit is offered beside itself")
	}
	f.get("/compare?b=" + one.String()).has(`href="/compare?a=` + two.String() + `&amp;b=` + one.String() + `"`)
	for _, query := range []string{"?a=x", "?a=" + uuid.NewString(), "?a=" + one.String() + "&b=" + uuid.NewString()} {
		f.get("/compare"+query).is(404).has("There is no run and no unit with the id", "<html")
	}
	f.get("/compare?from=x").refused(422, "from", "")
}

func TestRunsOfOneUnitAreCompared(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	id := f.fail(mock(""), work.ClassRefusal)
	f.form("/units/" + id.String() + "/retry").is(303)
	f.run(id, "done")
	runs, err := f.Store.Runs.OfUnit(t.Context(), id)
	if err != nil || len(runs) != 2 {
		t.Fatalf("%+v, %v", runs, err)
	}
	pair := "/compare?a=" + runs[0].ID.String() + "&b=" + runs[1].ID.String()
	unit := f.get("/units/" + id.String()).has(`href="/compare?a=` + runs[1].ID.String() + `"`)
	if links := strings.Count(string(unit.body), "/compare?"); links != 1 {
		t.Errorf("%d ways to compare it", links)
	}
	f.get(pair).is(200).has("run 1 of 2", "run 2 of 2", "refusal: no", "done")
	f.get("/compare?a="+runs[0].ID.String()).has("its run 2", strings.ReplaceAll(pair, "&", "&amp;"))
}
