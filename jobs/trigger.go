package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"piecework/internal/expr"
	"piecework/internal/strictjson"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/store"
)

// TriggerBody is what a caller wants to happen when a webhook comes.
type TriggerBody struct {
	Preset  string   `json:"preset" enum:"github,stripe,slack,standard,hmac,basic,api_key" doc:"How senders prove who they are. standard is Standard Webhooks, which OpenAI's are too; hmac, basic and api_key are for all others"`
	Secrets []string `json:"secrets,omitempty" nullable:"false" maxItems:"2" doc:"The current secret, and the one before it while senders change over. They are never told again; when left out, those that the trigger has stay"`

	Header          string               `json:"header,omitempty" doc:"hmac: has the signature. api_key: has the key, X-API-Key when left out" example:"X-Signature"`
	Algorithm       string               `json:"algorithm,omitempty" enum:"sha256,sha512" doc:"hmac; sha256 when left out"`
	Encoding        string               `json:"encoding,omitempty" enum:"hex,base64" doc:"hmac: of the signature; hex when left out"`
	Prefix          string               `json:"prefix,omitempty" doc:"hmac, api_key: stands before the signature or the key" example:"sha256="`
	Signed          string               `json:"signed,omitempty" doc:"hmac: what is signed, made of {body}, {timestamp} and {id}; {body} when left out" example:"{timestamp}.{body}"`
	TimestampHeader string               `json:"timestamp_header,omitempty" doc:"hmac: has the {timestamp}, in seconds since 1970"`
	IDHeader        string               `json:"id_header,omitempty" doc:"hmac, basic, api_key: has the delivery's {id}, which makes one unit however often it comes"`
	Username        string               `json:"username,omitempty" doc:"basic"`
	Tolerance       *strictjson.Duration `json:"tolerance,omitempty" doc:"How far a timestamp may be from now; 5 min when left out"`

	Events       []string          `json:"events,omitempty" nullable:"false" maxItems:"100" doc:"Which events make units; * stands for any characters. All when left out"`
	Filter       string            `json:"filter,omitempty" doc:"Expression (CEL) over body, headers, event and delivery that must be true" example:"body.action == \"opened\""`
	EventFrom    string            `json:"event_from,omitempty" doc:"hmac, basic, api_key: expression for the event" example:"body.type"`
	DeliveryFrom string            `json:"delivery_from,omitempty" doc:"hmac, basic, api_key: expression for the delivery's id, instead of id_header" example:"body.id"`
	Mapping      map[string]string `json:"mapping,omitempty" maxProperties:"100" doc:"Payload of the unit: key to expression. When left out the payload gets body, event and delivery; that of a batch's units has the item, and these keys beside it"`
	MaxBodyBytes int64             `json:"max_body_bytes,omitempty" minimum:"1" doc:"The largest body that it takes; 1048576 when left out, at most 26214400: GitHub sends up to 25 MB"`
	Paused       bool              `json:"paused,omitempty" doc:"Makes no units until it is put again without this"`
	Unit         *UnitBody         `json:"unit,omitempty" doc:"What its units are asked for; without not_before, delay, deadline and expires_at. This or batch"`
	Batch        *TriggerBatch     `json:"batch,omitempty" doc:"What its batches are asked for. This or unit"`
}

// NewTrigger turns what is said about a trigger into one, without its secrets.
func (s *Submitter) NewTrigger(ctx context.Context, name string, b *TriggerBody) (work.Trigger, error) {
	t := work.Trigger{Tenant: work.DefaultTenant, Name: name, Events: append([]string{}, b.Events...), Filter: b.Filter,
		EventFrom: b.EventFrom, DeliveryFrom: b.DeliveryFrom, Mapping: b.Mapping,
		MaxBodyBytes: b.MaxBodyBytes, Paused: b.Paused}
	scheme := work.Scheme{Preset: b.Preset, Header: b.Header, Algorithm: b.Algorithm, Encoding: b.Encoding, Prefix: b.Prefix,
		Signed: b.Signed, TimestampHeader: b.TimestampHeader, IDHeader: b.IDHeader, Username: b.Username}
	if b.MaxBodyBytes > work.MaxTriggerBody {
		return t, work.Invalidf("#/max_body_bytes", "must lie between 1 and %d", work.MaxTriggerBody)
	}
	if b.Tolerance != nil {
		if err := scheme.Tolerance.UnmarshalJSON(*b.Tolerance); err != nil {
			return t, work.Invalidf("#/tolerance", "%.200v", err)
		}
	}
	var err error
	if t.Scheme, err = webhook.Check(scheme); err != nil {
		return t, err
	}
	for i, pattern := range t.Events {
		if pattern == "" || len(pattern) > 200 || work.CheckEvent(pattern) != nil {
			return t, work.Invalidf(fmt.Sprintf("#/events/%d", i), "%.200q names no event: write its name; * stands for any characters", pattern)
		}
	}
	switch {
	case (b.Unit == nil) == (b.Batch == nil):
		return t, work.Invalidf("#/unit", "give either unit or batch: what is made of a webhook")
	case b.Unit == nil:
		t.Batch, err = s.newTriggerBatch(ctx, name, b.Batch)
		return t, work.Within("#/batch", err)
	}
	n, err := s.NewUnit(ctx, b.Unit)
	if err != nil {
		return t, work.Within("#/unit", err)
	}
	if timed(n) {
		return t, work.Invalidf("#/unit", "%s", noTimes)
	}
	t.Unit = &n.Spec
	t.Unit.Labels, err = withTriggerLabel(t.Unit.Labels, name)
	return t, err
}

const noTimes = "a trigger's unit has no not_before, delay, deadline or expires_at: it runs when the webhook has come, and timeout says for how long"

func timed(n store.NewUnit) bool {
	return n.NotBefore != nil || n.Delay > 0 || n.Deadline != nil || n.ExpiresAt != nil
}

// triggerLabel finds a trigger's units again.
const triggerLabel = "trigger"

func withTriggerLabel(given json.RawMessage, name string) (json.RawMessage, error) {
	all := map[string]string{}
	if err := json.Unmarshal(strictjson.OrEmpty(given), &all); err != nil {
		return nil, err
	}
	if _, ok := all[triggerLabel]; !ok {
		all[triggerLabel] = name
	}
	return json.Marshal(all)
}

// TriggerRules are a trigger's expressions, compiled; nil where it has none.
type TriggerRules struct {
	Filter, Event, Delivery *expr.Program
	Items                   *expr.Program // the list that a batch is made of
	Mapping                 map[string]*expr.Program
	Keys                    []string // of Mapping, sorted
}

var mappingKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// hostKeys of a payload choose files and directories of the server. What others
// send must not.
var hostKeys = []string{"file_path", "file_paths", "working_directory"}

// CompileTrigger makes the rules of a trigger, or says which of them is wrong.
func (s *Submitter) CompileTrigger(t work.Trigger) (TriggerRules, error) {
	var r TriggerRules
	named := t.Preset == webhook.HMAC || t.Preset == webhook.Basic || t.Preset == webhook.APIKey
	for pointer, part := range map[string]struct {
		source  string
		into    **expr.Program
		compile func(string) (*expr.Program, error)
	}{
		"#/filter":        {t.Filter, &r.Filter, s.language.CompileCondition},
		"#/event_from":    {t.EventFrom, &r.Event, s.language.Compile},
		"#/delivery_from": {t.DeliveryFrom, &r.Delivery, s.language.Compile},
	} {
		if part.source == "" {
			continue
		}
		if pointer != "#/filter" && !named {
			return r, work.Invalidf(pointer, "%s says itself where that stands; leave it out", t.Preset)
		}
		var err error
		if *part.into, err = part.compile(part.source); err != nil {
			return r, work.Invalidf(pointer, "%v", err)
		}
	}
	if t.Batch != nil {
		b, err := ReadTriggerBatch(t)
		if err != nil {
			return r, err
		}
		if r.Items, err = s.language.Compile(b.Items); err != nil {
			return r, work.Invalidf("#/batch/items", "%v", err)
		}
	}
	r.Mapping, r.Keys = map[string]*expr.Program{}, slices.Sorted(maps.Keys(t.Mapping))
	for _, key := range r.Keys {
		pointer := "#/mapping/" + strictjson.Escape(key)
		if !mappingKey.MatchString(key) {
			return r, work.Invalidf(pointer, "a key has 1 to 64 letters, digits and _, and begins with no digit")
		}
		if slices.Contains(hostKeys, key) {
			return r, work.Invalidf(pointer, "chooses what is read on the server, which a webhook must not; set it in the unit's own payload")
		}
		var err error
		if r.Mapping[key], err = s.language.Compile(t.Mapping[key]); err != nil {
			return r, work.Invalidf(pointer, "%v", err)
		}
	}
	return r, nil
}
