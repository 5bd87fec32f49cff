package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"piecework/internal/source"
)

// BatchSubmitCommand is `piecework batch submit`.
type BatchSubmitCommand struct {
	Remote
	Waiting
	File string `arg:"" optional:"" help:"The batch as the API takes it, in JSON, or units, one a line (.jsonl, .ndjson); - is standard input. What the flags say counts more. Or leave it out and name a source."`

	Source    string   `help:"Make the units of a source on the server: files:NAME:DIR for a directory in a root, csv:, json: or jsonl: and a file in a root or the id of an upload." xor:"from" placeholder:"TYPE:PATH"`
	CSV       string   `name:"csv" help:"Make a unit of each row of this CSV file, which is uploaded; columns fill the prompt's {keys}." xor:"from" placeholder:"FILE"`
	JSONL     string   `name:"jsonl" help:"Make a unit of each line of this file, which is uploaded; a line's fields fill the prompt." xor:"from" placeholder:"FILE"`
	JSONFile  string   `name:"json-file" help:"Make a unit of each value of an array in this file, which is uploaded." xor:"from" placeholder:"FILE"`
	Items     string   `help:"Of JSON: where the array is, such as /data/rows." placeholder:"POINTER"`
	Delimiter string   `help:"Of CSV: what is between two fields." placeholder:"CHAR"`
	IDField   string   `name:"id-field" help:"Of CSV, JSON and JSONL: the column or field that names a unit." placeholder:"NAME"`
	Glob      []string `help:"Of files: only paths such as **/*.pdf." sep:"none" placeholder:"PATTERN"`
	Exclude   []string `help:"Of files: not these." sep:"none" placeholder:"PATTERN"`
	Suffix    []string `help:"Of files: only names that end so." placeholder:".EXT"`
	Hidden    bool     `help:"Of files: those that begin with a dot as well."`
	Limit     int      `help:"Only so many of the first items." placeholder:"N"`

	Unit       string `help:"File with what is the same in all units, as the API takes a unit, in JSON; the flags count more." placeholder:"FILE"`
	Backend    string `help:"Backend that does the work." short:"b" placeholder:"NAME"`
	Model      string `help:"Model, as the backend calls it."`
	Prompt     string `help:"Prompt template of all units." xor:"prompt" placeholder:"TEXT"`
	PromptFile string `help:"Read the prompt template from a file." xor:"prompt" placeholder:"FILE"`
	OnDenied   string `help:"When the agent answers after a tool was denied: fail the run, or note it and let it succeed; fail by default." enum:",fail,note" default:"" placeholder:"POLICY"`

	Title           string   `help:"For people."`
	TestFirst       int      `help:"Run so many, then wait for an approval." placeholder:"N"`
	Concurrency     int      `help:"Units at once, at most." placeholder:"N"`
	MaxCost         *float64 `help:"Most that all units together may cost." placeholder:"USD"`
	StopWhen        []string `help:"Pause when units go wrong: failure_rate=0.2, refusal_rate=0.1, denial_rate=0.1 or mean_cost_usd=0.5, of the last window=20." sep:"none" placeholder:"RULE"`
	SynthesisPrompt string   `help:"Prompt of a unit that gets the results as a file when the others are over." placeholder:"TEXT"`
	DespiteFailures bool     `help:"Make that unit also when some units failed."`
	SkipInvalid     bool     `help:"Leave out items that no unit can be made of, instead of refusing the batch."`
	DryRun          bool     `help:"Show what would be made, and make nothing."`
	IdempotencyKey  string   `help:"Submit at most once under this key; a new one is made up by default." placeholder:"KEY"`
}

// Run submits a batch and prints its id, or with --wait how it ends.
func (c *BatchSubmitCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	flags, err := c.options()
	if err != nil {
		return err
	}
	var b *batch
	if c.File != "" {
		b, err = c.submitFile(app, client, flags)
	} else {
		b, err = c.submitSource(app.Ctx, client, flags)
	}
	switch {
	case err != nil:
		return fmt.Errorf("submit: %w", err)
	case c.DryRun && !c.JSON:
		return printDryRun(app.Stdout, b)
	case c.Wait && !c.DryRun:
		_, _ = fmt.Fprintln(app.Stderr, "batch", b.ID)
		return followBatch(app, client, b, c.JSON)
	case c.JSON:
		return printJSON(app.Stdout, b.document)
	}
	_, err = fmt.Fprintln(app.Stdout, b.ID)
	return err
}

// options is what the flags say about the batch, as the API takes it.
func (c *BatchSubmitCommand) options() (map[string]any, error) {
	options := map[string]any{}
	set := func(name string, value any, given bool) {
		if given {
			options[name] = value
		}
	}
	set("title", c.Title, c.Title != "")
	set("test_first", c.TestFirst, c.TestFirst != 0)
	set("concurrency", c.Concurrency, c.Concurrency != 0)
	set("max_cost_usd", c.MaxCost, c.MaxCost != nil)
	set("on_invalid", "skip", c.SkipInvalid)
	set("dry_run", true, c.DryRun)
	unit, err := c.unit()
	if err != nil {
		return nil, err
	}
	set("unit", unit, len(unit) > 0)
	rules, err := keyValues("--stop-when", c.StopWhen)
	if err != nil {
		return nil, err
	}
	stop := map[string]float64{}
	for name, text := range rules {
		if stop[name], err = strconv.ParseFloat(text, 64); err != nil {
			return nil, usagef("--stop-when: %q is no number; write such as failure_rate=0.2", text)
		}
	}
	set("stop_when", stop, len(stop) > 0)
	synthesis := map[string]any{}
	if c.SynthesisPrompt != "" {
		synthesis["unit"] = map[string]string{"prompt": c.SynthesisPrompt}
	}
	if c.DespiteFailures {
		synthesis["despite_failures"] = true
	}
	set("synthesis", synthesis, len(synthesis) > 0)
	return options, nil
}

// unit is what is the same in all units.
func (c *BatchSubmitCommand) unit() (map[string]any, error) {
	unit := map[string]any{}
	if c.Unit != "" {
		text, err := os.ReadFile(c.Unit)
		if err != nil {
			return nil, usagef("--unit: %w", err)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
			return nil, usagef("--unit: %s holds no JSON object such as {\"backend\":\"mock\",\"prompt\":\"…\"}", c.Unit)
		}
		for name, value := range fields {
			unit[name] = value
		}
	}
	prompt := c.Prompt
	if c.PromptFile != "" {
		text, err := os.ReadFile(c.PromptFile)
		if err != nil {
			return nil, usagef("--prompt-file: %w", err)
		}
		prompt = string(text)
	}
	for name, value := range map[string]string{"prompt": prompt, "backend": c.Backend, "model": c.Model, "on_denied": c.OnDenied} {
		if value != "" {
			unit[name] = value
		}
	}
	return unit, nil
}

func (c *BatchSubmitCommand) key() string {
	if c.DryRun {
		return ""
	}
	return cmp.Or(c.IdempotencyKey, uuid.NewString())
}

// submitSource submits a batch of a source. A file of this machine is uploaded
// first, and deleted again when nothing was made of it.
func (c *BatchSubmitCommand) submitSource(ctx context.Context, client *client, options map[string]any) (*batch, error) {
	s, local, err := c.source()
	if err != nil {
		return nil, err
	}
	forget := func() {}
	if local != "" {
		id, err := client.uploadSource(ctx, local)
		if err != nil {
			return nil, fmt.Errorf("upload %s: %w", safeLine(local), err)
		}
		s.Path = id
		forget = func() {
			_, _ = client.once(context.WithoutCancel(ctx), request{method: http.MethodDelete, path: "/files/" + s.Path})
		}
	}
	body := maps.Clone(options)
	body["source"] = s
	b, err := client.batchCall(ctx, request{method: http.MethodPost, path: "/batches", body: body, idempotencyKey: c.key()})
	var refused *problem
	if c.DryRun || errors.As(err, &refused) && refused.Status < 500 {
		forget()
	}
	return b, err
}

// source is what the flags say about a source, and the file of this machine
// that it is to be made of, if any.
func (c *BatchSubmitCommand) source() (s source.Source, local string, err error) {
	s = source.Source{Glob: c.Glob, Exclude: c.Exclude, Suffix: c.Suffix, Hidden: c.Hidden, Delimiter: c.Delimiter, Items: c.Items,
		CustomID: c.IDField, Limit: c.Limit}
	switch {
	case c.CSV != "":
		s.Type, local = source.TypeCSV, c.CSV
	case c.JSONL != "":
		s.Type, local = source.TypeJSONL, c.JSONL
	case c.JSONFile != "":
		s.Type, local = source.TypeJSON, c.JSONFile
	case c.Source != "":
		kind, path, found := strings.Cut(c.Source, ":")
		if !found || path == "" {
			return s, "", usagef("--source: %q is not of the form TYPE:PATH, such as files:docs:contracts", c.Source)
		}
		s.Type, s.Path = kind, path
	default:
		return s, "", usagef("give a file of units (- is standard input), or a source: --source, --csv, --jsonl or --json-file")
	}
	return s, local, nil
}

// wantsSource tells whether flags of a source were given.
func (c *BatchSubmitCommand) wantsSource() bool {
	return c.Source+c.CSV+c.JSONL+c.JSONFile+c.Items+c.Delimiter+c.IDField != "" ||
		len(c.Glob)+len(c.Exclude)+len(c.Suffix)+c.Limit > 0 || c.Hidden
}

// submitFile submits a batch in JSON, or lines as they are read.
func (c *BatchSubmitCommand) submitFile(app *App, client *client, options map[string]any) (*batch, error) {
	if c.wantsSource() {
		return nil, usagef("give either a file of units or a source and its flags, not both")
	}
	in := app.Stdin
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return nil, usagef("%w", err)
		}
		defer file.Close()
		in = file
	}
	flags, err := json.Marshal(options)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	text := bufio.NewReaderSize(in, 64<<10)
	first, err := firstLineOf(text)
	if err != nil {
		return nil, err
	}
	if !c.isLines(first) {
		return c.submitBody(app.Ctx, client, io.MultiReader(bytes.NewReader(first), text), flags)
	}
	head, err := withOptions(first, flags)
	if err != nil {
		return nil, err
	}
	client.http.Timeout = 0 // as long as the lines take; the server ends what stands still
	document, err := client.once(app.Ctx, request{method: http.MethodPost, path: "/batches", stream: io.MultiReader(bytes.NewReader(head), text),
		contentType: "application/x-ndjson", idempotencyKey: c.key()})
	if err != nil {
		return nil, aboutBatch(err)
	}
	return parseBatch(document)
}

// firstLineOf reads the first line that is not blank, with its end.
func firstLineOf(text *bufio.Reader) ([]byte, error) {
	var blank []byte
	for {
		line, err := text.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read the units: %w", err)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			return append(blank, line...), nil // blank lines count
		}
		if err != nil {
			return nil, usagef("there is no unit in it; write one a line, or {\"units\":[…]}")
		}
		blank = append(blank, line...)
	}
}

// isLines tells lines of units from a batch in JSON: by the file's name, else
// by its first line.
func (c *BatchSubmitCommand) isLines(first []byte) bool {
	switch strings.ToLower(filepath.Ext(c.File)) {
	case ".jsonl", ".ndjson":
		return true
	}
	var fields map[string]json.RawMessage
	return json.Unmarshal(first, &fields) == nil && fields["units"] == nil && fields["source"] == nil
}

// withOptions lays the flags over what the first line says about the batch, or
// puts a line before it. That line is numbered 0, so that units keep theirs.
func withOptions(first, flags []byte) ([]byte, error) {
	if string(flags) == "{}" {
		return first, nil
	}
	var head struct {
		Batch json.RawMessage `json:"batch"`
	}
	if json.Unmarshal(first, &head) != nil || head.Batch == nil {
		return append(fmt.Appendf(nil, "{\"batch\":%s,\"line\":0}\n", flags), first...), nil
	}
	batch, err := lay(head.Batch, flags)
	if err != nil {
		return nil, usagef("the first line's batch is no object: %w", err)
	}
	blank := bytes.Count(first[:len(first)-len(bytes.TrimLeft(first, " \t\r\n"))], []byte("\n"))
	return fmt.Appendf(bytes.Repeat([]byte("\n"), blank), "{\"batch\":%s}\n", batch), nil
}

// maxBatchBody is how large a batch in JSON may be, in bytes. Servers take less
// unless told otherwise.
const maxBatchBody = 64 << 20

func (c *BatchSubmitCommand) submitBody(ctx context.Context, client *client, in io.Reader, flags []byte) (*batch, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxBatchBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the batch: %w", err)
	case len(text) > maxBatchBody:
		return nil, usagef("a batch in JSON may have %d MB; write the units one a line into a .jsonl file, of which there may be any number", maxBatchBody>>20)
	}
	body, err := lay(text, flags)
	if err != nil {
		return nil, usagef("%s is no JSON object: %w (write {\"unit\":{…},\"units\":[…]}, or one unit a line in a .jsonl file)", c.File, err)
	}
	return client.batchCall(ctx, request{method: http.MethodPost, path: "/batches", body: json.RawMessage(body), idempotencyKey: c.key()})
}

// merged are the fields of a batch that are laid over each other; others
// replace what was there.
var merged = []string{"unit", "payload", "labels", "synthesis", "stop_when"}

// lay puts the fields of an object over those of another.
func lay(under, over json.RawMessage) (json.RawMessage, error) {
	var fields, above map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(under, &fields), json.Unmarshal(over, &above)); err != nil {
		return nil, err
	}
	if fields == nil {
		return over, nil
	}
	for name, value := range above {
		if below := fields[name]; slices.Contains(merged, name) && len(below) > 0 && below[0] == '{' && value[0] == '{' {
			var err error
			if value, err = lay(below, value); err != nil {
				return nil, err
			}
		}
		fields[name] = value
	}
	return json.Marshal(fields)
}

func printDryRun(w io.Writer, b *batch) error {
	facts := newTable(w, "units", fmt.Sprintf("%d would be made", b.Counts.Total))
	if b.Rejected > 0 {
		facts.row("rejected", fmt.Sprintf("%d items of which none can be made", b.Rejected))
	}
	if s := b.Sample; s != nil {
		facts.row("the first", s.CustomID)
		facts.row("backend", strings.TrimSpace(s.Backend+" "+s.Model))
		facts.row("prompt", s.Title)
		facts.row("payload", excerpt(string(s.Payload), 200))
	}
	if err := facts.flush(); err != nil {
		return err
	}
	return printProblems(w, b)
}
