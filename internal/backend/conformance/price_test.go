package conformance

import (
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/work"
)

func TestUnknownModelHasNoCost(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		req := backendtest.NewRequest(t, "x")
		req.Model = "nobody-knows"
		got := backendtest.Execute(t.Context(), t, b, req)
		got.WantSuccess(t, "ok")
		got.WantUsage(t, work.Usage{InputTokens: 100, OutputTokens: 10}, nil, false)
		asked := len(model.Requests())
		req.MaxCostUSD = new(1.0)
		backendtest.Execute(t.Context(), t, b, req).WantFailure(t, work.ClassInvalidRequest, "nobody-knows", "--prices")
		if len(model.Requests()) != asked {
			t.Error("money was spent on a unit whose budget cannot be kept")
		}
	})
}

func TestServersOwnReckoningCounts(t *testing.T) {
	model := fakemodel.Start(t)
	model.Script(fakemodel.Turn{Text: "ok", CostUSD: 0.125})
	got := backendtest.Execute(t.Context(), t, modelAPIs(t, model.URL)["chat"], backendtest.NewRequest(t, "x"))
	got.WantUsage(t, work.Usage{InputTokens: 100, OutputTokens: 10}, new(0.125), false)
}

func TestMaxCostIsWatched(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		req := backendtest.NewRequest(t, strings.Repeat("x", 100_000)) // 20,000 tokens, 4 to 6 cents
		req.MaxCostUSD = new(0.01)
		backendtest.Execute(t.Context(), t, b, req).WantFailure(t, work.ClassMaxCost, "20000 tokens")
		if n := len(model.Requests()); n != 0 {
			t.Errorf("the model was called %d times", n)
		}

		req.Prompt = "x"
		model.Script(fakemodel.Turn{Text: "half", StopReason: "max_tokens"})
		got := backendtest.Execute(t.Context(), t, b, req)
		got.WantFailure(t, work.ClassMaxCost, "cut after 10 tokens")
		if n := model.Requests()[0].MaxTokens; n < 500 || n > 1300 || got.Output != "half" {
			t.Errorf("the answer was limited to %d tokens; output %q", n, got.Output)
		}
		req.MaxCostUSD = new(1000.0)
		model.Script(fakemodel.Turn{Text: "ok"})
		backendtest.Execute(t.Context(), t, b, req).WantSuccess(t, "ok")
	})
}
