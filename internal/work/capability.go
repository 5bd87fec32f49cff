package work

// Capability is something that a backend can do beside answering a prompt.
type Capability string

// The capabilities of backends.
const (
	CanFiles     Capability = "files"         // text files reach the model
	CanImages    Capability = "images"        // images reach the model as images
	CanPDFs      Capability = "pdfs"          // PDFs reach the model as documents
	CanTools     Capability = "tools"         // the model runs commands and writes files
	CanResume    Capability = "resume"        // a new run goes on with the session of one that was cut off
	CanSchema    Capability = "output_schema" // an answer that does not fit is asked for once more
	CanCost      Capability = "cost"          // it is known what a run costs
	CanMaxCost   Capability = "max_cost_usd"  // a run is stopped when it has cost too much
	CanTurns     Capability = "max_turns"     // a run is stopped after so many turns
	CanRequest   Capability = "request"       // a unit may be one call of its API
	CanBatchLane Capability = "lane"          // a unit may go through the provider's own batches
)

// Capabilities lists every capability in the order documents show them.
var Capabilities = []Capability{CanFiles, CanImages, CanPDFs, CanTools, CanResume, CanSchema, CanCost, CanMaxCost, CanTurns, CanRequest,
	CanBatchLane}
