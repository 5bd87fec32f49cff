package handlers

import (
	"context"
	"errors"
	"fmt"

	"piecework/internal/accept"
	"piecework/internal/backend"
	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// acceptance reads the check of a unit's result, nil when it has none.
func (w *Worker) acceptance(c *store.Claimed) (*accept.Check, error) {
	if len(c.Accept) == 0 {
		return nil, nil
	}
	check, err := accept.Parse(c.Accept)
	if err != nil {
		return nil, err
	}
	if check.HasCommand() && !w.AcceptCommands {
		return nil, errors.New("accept has a command, and this worker process runs none: " +
			"set PIECEWORK_ACCEPT_COMMANDS for API and worker processes alike")
	}
	return check, nil
}

// callAccepted runs the unit's backend. A result that does not meet the unit's
// acceptance check is asked for once more, in the same session, with the words
// of the check; one that does not meet it then either is a failure.
func (a *attempt) callAccepted(ctx context.Context) error {
	err := a.call(ctx)
	if a.prep.accept == nil || err != nil || !a.ran.Success {
		return err
	}
	verdict, err := a.check(ctx)
	if err != nil || !a.ran.Success || verdict.Unmet == "" {
		return err
	}
	first := a.ran.Result
	again, ok := a.prep.req.Again(first, a.w.redact(verdict.Words()))
	if verdict.Hopeless || !ok || !backend.Can(a.claimed.Backend, work.CanSchema) || again.Call != nil {
		a.refuse(verdict)
		return nil
	}
	a.rec.steps.Add(transcript.Step{Type: transcript.SystemText, Text: "Asking once more for a result that is accepted."})
	a.prep.req = again
	err = a.call(ctx)
	a.ran.Result = a.ran.After(first)
	if err != nil || !a.ran.Success {
		return err
	}
	if verdict, err = a.check(ctx); err == nil && a.ran.Success && verdict.Unmet != "" {
		a.refuse(verdict)
	}
	return err
}

// refuse makes a result a failure. Its output and its cost are kept.
func (a *attempt) refuse(v accept.Verdict) {
	a.ran.Success, a.ran.Error = false, v.Failure()
}

// check looks whether the result of a run meets the unit's acceptance check, and
// says so in the transcript. When ctx ends first the run has not succeeded.
func (a *attempt) check(ctx context.Context) (accept.Verdict, error) {
	verdict, err := a.prep.accept.Run(ctx, accept.Result{
		Output: a.ran.Output, Dir: a.prep.req.Dir, OpenedDir: a.prep.req.OpenedDir,
		Env:  append([]string{"HOME=" + a.prep.req.Home}, a.w.CommandEnv...),
		Mark: process.NewMark(a.claimed.RunID.String()), Supervisor: a.w.Supervisor, Lease: a.lease,
	})
	if err != nil || ctx.Err() != nil {
		a.ran.Success, a.ran.Error = false, nil
		return verdict, err
	}
	step := transcript.Step{Type: transcript.SystemText, Text: "The result was accepted: it meets the unit's acceptance check."}
	if verdict.Unmet != "" {
		step.Text, step.IsError = fmt.Sprintf("The result was not accepted: %s.", verdict.Unmet), true
	}
	if verdict.Said != "" {
		step.Text += "\nThe command wrote:\n" + verdict.Said
	}
	a.rec.steps.Add(step)
	return verdict, nil
}
