package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"piecework/internal/work"
)

// BatchCommand is `piecework batch`.
type BatchCommand struct {
	Submit  BatchSubmitCommand  `cmd:"" help:"Submit many units together: from a file of units, or made of files, rows or values."`
	List    BatchListCommand    `cmd:"" aliases:"ls" help:"List batches, newest first."`
	Status  BatchStatusCommand  `cmd:"" help:"Show how far a batch is, and what to do next."`
	Results BatchResultsCommand `cmd:"" help:"Get the results of a batch, also while it runs."`
	Approve BatchApproveCommand `cmd:"" help:"Let the rest of a batch run after its test."`
	Pause   BatchPauseCommand   `cmd:"" help:"Let no further unit of a batch begin."`
	Resume  BatchResumeCommand  `cmd:"" help:"Let a paused batch go on."`
	Cancel  BatchCancelCommand  `cmd:"" help:"Cancel a batch, or reject it after its test."`
	Retry   BatchRetryCommand   `cmd:"" help:"Run the units of a batch again that did not succeed."`
}

// batch is a batch as the API shows it, and the document it came in.
type batch struct {
	work.Batch
	Forecast *forecast    `json:"forecast"`
	Sample   *batchSample `json:"sample"`
	DryRun   bool         `json:"dry_run"`
	document []byte
}

// forecast is what the rest of a batch will probably take.
type forecast struct {
	Trial     int       `json:"trial"`
	Succeeded int       `json:"succeeded"`
	Left      int       `json:"left"`
	CostUSD   *estimate `json:"cost_usd"` // nil: not known
	Elapsed   estimate  `json:"elapsed"`  // seconds
}

type estimate struct {
	Low  float64 `json:"low"`
	Mean float64 `json:"mean"`
	High float64 `json:"high"`
}

// batchSample is the first unit of a batch.
type batchSample struct {
	CustomID string          `json:"custom_id"`
	Title    string          `json:"title"`
	Backend  string          `json:"backend"`
	Model    string          `json:"model"`
	Payload  json.RawMessage `json:"payload"`
}

func batchPath(id string, more ...string) string {
	return strings.Join(append([]string{"/batches", url.PathEscape(id)}, more...), "/")
}

func (c *client) batch(ctx context.Context, id string) (*batch, error) {
	return c.batchCall(ctx, request{method: http.MethodGet, path: batchPath(id)})
}

func (c *client) batchCall(ctx context.Context, r request) (*batch, error) {
	document, err := c.do(ctx, r)
	if err != nil {
		return nil, aboutBatch(err)
	}
	return parseBatch(document)
}

// aboutBatch makes an answer's advice that for batches.
func aboutBatch(err error) error {
	var p *problem
	if errors.As(err, &p) {
		p.batch = true
	}
	return err
}

func parseBatch(document []byte) (*batch, error) {
	b := &batch{document: document}
	if err := json.Unmarshal(document, b); err != nil {
		return nil, &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	return b, nil
}

// BatchStatusCommand is `piecework batch status`.
type BatchStatusCommand struct {
	Remote
	Waiting
	ID string `arg:"" name:"id" help:"The batch's id."`
}

// Run prints a batch.
func (c *BatchStatusCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	b, err := client.batch(app.Ctx, c.ID)
	if err != nil {
		return fmt.Errorf("batch %s: %w", safeLine(c.ID), err)
	}
	if c.Wait {
		return followBatch(app, client, b, c.JSON)
	}
	return showBatch(app.Stdout, b, c.JSON)
}

func showBatch(w io.Writer, b *batch, asJSON bool) error {
	if asJSON {
		return printJSON(w, b.document)
	}
	return printBatch(w, b)
}

func printBatch(w io.Writer, b *batch) error {
	facts := newTable(w, "batch", b.ID.String())
	facts.row("status", string(b.Status))
	if b.Paused != nil {
		p := operatorPause(*b.Paused)
		facts.row("paused", p.String())
	}
	if b.Why != "" {
		facts.row("why", b.Why)
	}
	if b.Title != "" {
		facts.row("title", b.Title)
	}
	facts.row("units", countsText(b.Counts))
	if b.Rejected > 0 {
		facts.row("rejected", fmt.Sprintf("%d items of which no unit could be made", b.Rejected))
	}
	facts.row("cost", costText(b))
	if hits := b.Counts.PromptCacheHitRate; hits != nil {
		facts.row("prompt cache", fmt.Sprintf("%.0f %% of the input came from it", *hits*100))
	}
	if b.Concurrency > 0 {
		facts.row("at once", strconv.Itoa(b.Concurrency))
	}
	facts.row("created", clock(&b.CreatedAt))
	facts.row("finished", clock(b.FinishedAt))
	facts.row("took", took(&b.CreatedAt, b.FinishedAt))
	if f := b.Forecast; f != nil {
		facts.row("forecast", fmt.Sprintf("%d units are left; %d have run, of which %d succeeded", f.Left, f.Trial, f.Succeeded))
		cost := "what they will cost is not known"
		if c := f.CostUSD; c != nil {
			cost = fmt.Sprintf("they will probably cost %s (%s to %s)", work.Dollars(c.Mean), work.Dollars(c.Low), work.Dollars(c.High))
		}
		facts.row("", cost)
		facts.row("", fmt.Sprintf("and take %s (%s to %s)", seconds(f.Elapsed.Mean), seconds(f.Elapsed.Low), seconds(f.Elapsed.High)))
	}
	if b.SynthesisUnit != nil {
		facts.row("synthesis", "piecework get "+b.SynthesisUnit.String())
	}
	for _, advice := range nextForBatch(b) {
		facts.row("next", advice)
	}
	if err := facts.flush(); err != nil {
		return err
	}
	return printProblems(w, b)
}

// maxProblemsShown keeps the screen readable; --json has all that are kept.
const maxProblemsShown = 20

func printProblems(w io.Writer, b *batch) error {
	if len(b.Problems) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	t := newTable(w, "LINE", "ITEM", "WHAT IS WRONG")
	for _, p := range b.Problems[:min(len(b.Problems), maxProblemsShown)] {
		t.row(strconv.Itoa(p.Line), excerpt(p.CustomID, 40), strings.TrimSpace(p.Pointer+" "+p.Detail))
	}
	if err := t.flush(); err != nil {
		return err
	}
	if more := len(b.Problems) - maxProblemsShown; more > 0 {
		_, err := fmt.Fprintf(w, "… and %d more; --json shows them\n", more)
		return err
	}
	return nil
}

func seconds(s float64) string { return duration(time.Duration(s * float64(time.Second))) }

// countsText is how many units there are, and how many of them stand where.
func countsText(c work.BatchCounts) string {
	var parts []string
	for _, state := range []struct {
		name string
		n    int
	}{{"queued", c.Queued}, {"running", c.Running}, {"waiting", c.Waiting}, {"succeeded", c.Succeeded}, {"failed", c.Failed},
		{"cancelled", c.Cancelled}, {"timed out", c.Expired}} {
		if state.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", state.n, state.name))
		}
	}
	if c.Denied > 0 {
		parts = append(parts, fmt.Sprintf("a tool denied in %d", c.Denied))
	}
	text := strconv.Itoa(c.Total)
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

func costText(b *batch) string {
	text := b.Counts.CostText()
	if b.MaxCostUSD != nil {
		text += " of at most " + work.Dollars(*b.MaxCostUSD)
	}
	return text
}

// nextForBatch is what somebody may do with a batch as it stands.
func nextForBatch(b *batch) []string {
	command := func(verb string) string { return "piecework batch " + verb + " " + b.ID.String() }
	switch {
	case b.Status == work.BatchAwaitingApproval:
		return []string{command("results") + " to see what the test brought", command("approve") + " to run the rest", command("cancel") + " to run no more"}
	case b.Paused != nil && b.Paused.By == work.BySystem && b.MaxCostUSD != nil:
		return []string{command("resume") + " --max-cost USD to go on, with more to spend where that is why", command("cancel") + " to run no more"}
	case b.Paused != nil:
		return []string{command("resume") + " to go on", command("cancel") + " to run no more"}
	case b.Status == work.BatchCompleted:
		return []string{command("results")}
	case b.Status == work.BatchFailed:
		return []string{"mend what is wrong and submit it again; nothing was run"}
	case b.Status.Final():
		return []string{command("results"), command("results") + " --status failed,timed_out,cancelled to see why", command("retry") + " to run those again"}
	case b.Status == work.BatchCancelling:
		return []string{"it ends when the units that run have stopped"}
	}
	return []string{command("status") + " --wait to watch it"}
}

// BatchListCommand is `piecework batch list`.
type BatchListCommand struct {
	Remote
	Status string `help:"Only batches in this status, or these with commas between." placeholder:"STATUS"`
	Query  string `name:"q" help:"Only batches whose title contains this." placeholder:"TEXT"`
	After  string `help:"Go on after this cursor." placeholder:"CURSOR"`
	Limit  int    `help:"How many to show." default:"20" short:"n"`
	All    bool   `help:"Show all there are."`
}

// Run prints the newest batches.
func (c *BatchListCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	if c.Limit < 1 {
		return usagef("--limit must be at least 1")
	}
	query := url.Values{"limit": {strconv.Itoa(c.Limit)}}
	if c.All {
		query.Set("limit", strconv.Itoa(pageOfAll))
	}
	for name, value := range map[string]string{"status": c.Status, "q": c.Query, "after": c.After} {
		if value != "" {
			query.Set(name, value)
		}
	}
	list, err := client.list(app.Ctx, "/batches", query, c.All)
	if err != nil {
		return fmt.Errorf("list batches: %w", aboutBatch(err))
	}
	if c.JSON {
		document, err := json.Marshal(list)
		if err != nil {
			return fmt.Errorf("encode the list: %w", err)
		}
		return printJSON(app.Stdout, document)
	}
	batches := make([]*batch, len(list.Items))
	for i, item := range list.Items {
		if batches[i], err = parseBatch(item); err != nil {
			return err
		}
	}
	if err := printBatches(app.Stdout, batches); err != nil {
		return err
	}
	if list.Next != nil {
		_, _ = fmt.Fprintf(app.Stderr, "there are more: --all, or --after %s\n", safeLine(*list.Next))
	}
	return nil
}

func printBatches(w io.Writer, batches []*batch) error {
	t := newTable(w, "ID", "STATUS", "DONE", "FAILED", "COST", "CREATED", "TITLE")
	for _, b := range batches {
		status := string(b.Status)
		if b.Paused != nil {
			status += " (paused)"
		}
		c := b.Counts
		t.row(b.ID.String(), status, fmt.Sprintf("%d/%d", c.Finished(), c.Total), strconv.Itoa(c.Failed+c.Expired), c.CostText(),
			clock(&b.CreatedAt), excerpt(b.Title, 60))
	}
	return t.flush()
}

// BatchResultsCommand is `piecework batch results`.
type BatchResultsCommand struct {
	Remote
	ID     string `arg:"" name:"id" help:"The batch's id."`
	Output string `help:"Write them into this file instead; it appears when it is whole." short:"o" placeholder:"FILE"`
	Format string `help:"jsonl or csv; as the file's name ends, else jsonl." enum:"jsonl,csv,auto" default:"auto" placeholder:"FORMAT"`
	Status string `help:"Only units in this final state, or these with commas between." placeholder:"STATE"`
}

// Run copies the results as they come.
func (c *BatchResultsCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	client.http.Timeout = 0 // as long as it takes; a server that is cut off is noticed
	format := c.Format
	if format == "auto" {
		format = "jsonl"
		if strings.EqualFold(filepath.Ext(c.Output), ".csv") && !c.JSON {
			format = "csv"
		}
	}
	if c.JSON && format != "jsonl" {
		return usagef("--json and --format %s exclude each other", format)
	}
	query := url.Values{"format": {format}}
	if c.Status != "" {
		query.Set("status", c.Status)
	}
	get := func(w io.Writer) error {
		err := client.download(app.Ctx, batchPath(c.ID, "results"), query, w)
		if err != nil {
			return fmt.Errorf("results of %s: %w", safeLine(c.ID), aboutBatch(err))
		}
		return nil
	}
	if c.Output == "" || c.Output == "-" {
		return get(app.Stdout)
	}
	return writeWhole(c.Output, get)
}

// verdict is nil for a batch all of whose units succeeded, else an error with
// the exit code that says how it stands.
func (b *batch) verdict() error {
	switch {
	case b.Status == work.BatchCompleted:
		return nil
	case !b.Status.Final():
		why := string(b.Status)
		if b.Paused != nil {
			why = "paused: " + cmp.Or(b.Paused.Why, "by "+b.Paused.By)
		}
		return &exitError{exitAttention, fmt.Errorf("the batch is %s; %s", safeLine(why), strings.Join(nextForBatch(b), ", "))}
	}
	c := b.Counts
	return &exitError{exitUnsuccessful, fmt.Errorf("the batch is %s: %d of %d units did not succeed; %s", b.Status, c.Total-c.Succeeded, c.Total,
		strings.Join(slices.Compact(nextForBatch(b)), ", "))}
}
