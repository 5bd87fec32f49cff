package hooks

import (
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"piecework/api/view"
	"piecework/internal/work"
)

// SchemaName is what a type of these routes is called in the description; empty for
// others.
func SchemaName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[endpointBody]():
		return "NewEndpoint"
	case reflect.TypeFor[rotationBody](), reflect.TypeFor[*rotationBody]():
		return "Rotation"
	}
	return ""
}

func DescribeEndpoints(schemas map[string]*huma.Schema) {
	for _, name := range []string{"Endpoint", "AddedEndpoint"} {
		p := schemas[name].Properties
		p["id"].Format = "uuid"
		p["disabled_at"].Description, p["disabled_why"].Description = "Since then it gets no messages", "410: its receiver wanted no more"
		p["previous_secret_until"].Description = "Until then the secret before signs too"
	}
	p := schemas["Delivery"].Properties
	p["status"].Enum = view.Enum(work.DeliveryStates)
	for _, field := range []string{"id", "endpoint_id", "unit_id", "batch_id"} {
		p[field].Format, p[field].Nullable = "uuid", field != "id"
	}
	for field, text := range map[string]string{
		"webhook_id": "The header webhook-id, the same at every try", "endpoint_id": "null: to a callback_url",
		"url": "That was tried last, or will be first", "next_at": "Of the next try; null: there is none", "last_status": "Of HTTP; null: there was no answer",
		"response": "The start of the last answer", "body": "As it is sent; absent in lists", "attempts": "Tries so far",
	} {
		p[field].Description = text
	}
	schemas["DeliveryList"].Properties["next"] = view.NextCursor()
}

func exampleEndpoint(at time.Time) work.Endpoint {
	return work.Endpoint{ID: uuid.MustParse("0198f0c2-7b60-7a02-b1f1-3d5e6f708192"), URL: "https://example.com/hooks", Description: "The CRM",
		Events: []string{"work_unit.failed"}, CreatedAt: at}
}

const exampleSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" // of Standard Webhooks' own example

func Examples(unit work.Unit) map[string]any {
	at := unit.CreatedAt
	e := exampleEndpoint(at)
	status, body := 204, `{"type" : "work_unit.failed", "timestamp" : "2026-01-02T03:04:06.500Z", "data" : {"id": "`+unit.ID.String()+`", "status": "failed"}}`
	d := work.Delivery{ID: uuid.MustParse("0198f0c2-7b61-7a02-b1f1-3d5e6f708192"), EndpointID: &e.ID, URL: e.URL, UnitID: &unit.ID,
		EventType: "work_unit.failed", State: work.DeliveryDelivered, Attempts: 1, LastStatus: &status, TriedAt: &at, CreatedAt: at, DeliveredAt: &at}
	d.WebhookID = work.WebhookID(d.ID)
	whole := d
	whole.Body = &body
	return map[string]any{
		"Endpoint": e, "EndpointList": map[string]any{"items": []work.Endpoint{e}}, "AddedEndpoint": AddedEndpoint{e, exampleSecret},
		"NewEndpoint":    map[string]any{"url": e.URL, "description": e.Description, "events": e.Events},
		"EndpointChange": map[string]any{"url": e.URL, "events": e.Events, "disabled": true},
		"Secrets":        work.Secrets{Secret: exampleSecret}, "Rotation": map[string]any{"overlap": "1h"},
		"Delivery": whole, "DeliveryList": map[string]any{"items": []work.Delivery{d}, "next": nil},
		"Redelivery": map[string]any{"count": 12, "more": false},
	}
}

func DescribeTriggers(schemas map[string]*huma.Schema) {
	asked := schemas["NewTrigger"].Properties
	asked["secrets"].WriteOnly = true
	p := schemas["Trigger"].Properties
	p["preset"].Enum, p["algorithm"].Enum, p["encoding"].Enum = asked["preset"].Enum, asked["algorithm"].Enum, asked["encoding"].Enum
	p["events"].Nullable, p["secrets"].Nullable = false, false
	p["secrets"].Description = "The current one first. They themselves are never told"
	for _, field := range []string{"header", "prefix", "signed", "timestamp_header", "id_header", "username", "events", "filter",
		"event_from", "delivery_from", "mapping", "max_body_bytes"} {
		p[field].Description = asked[field].Description
	}
	p["tolerance"].Description = "Seconds"
	p["batch"] = asked["batch"]
	p = schemas["TriggerDelivery"].Properties
	p["id"].Format, p["unit_id"].Format, p["unit_id"].Nullable = "uuid", "uuid", true
	p["batch_id"].Format, p["batch_id"].Nullable = "uuid", true
	p["outcome"].Enum = []any{work.DeliveryAccepted, work.DeliveryFiltered, work.DeliveryPaused}
	p["delivery"].Description, p["duplicates"].Description = "As the sender calls it", "How often it came again"
	schemas["TriggerDeliveries"].Properties["next"] = view.NextCursor()
}
