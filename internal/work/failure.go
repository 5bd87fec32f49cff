package work

import "time"

// Class says what kind of failure ended a run. It decides what follows.
type Class string

// The classes of failure, the same for every backend.
const (
	ClassInfra          Class = "infra"            // 5xx, cut stream, spawn failure: likely to pass
	ClassRateLimit      Class = "rate_limit"       // 429, 529, a usage window: wait, then go on
	ClassAuth           Class = "auth"             // no key, wrong key, login expired
	ClassBilling        Class = "billing"          // the account is out of money
	ClassContextTooLong Class = "context_too_long" // the input does not fit the model
	ClassRefusal        Class = "refusal"          // the model declined
	ClassSchemaInvalid  Class = "schema_invalid"   // the answer does not fit output_schema
	ClassToolDenied     Class = "tool_denied"      // a tool that the work needs is not allowed
	ClassMaxTurns       Class = "max_turns"        // max_turns reached
	ClassMaxCost        Class = "max_cost"         // max_cost_usd reached
	ClassTimeout        Class = "timeout"          // the run outlived its timeout, or the unit its deadline or expires_at
	ClassHang           Class = "hang"             // no output for idle_timeout, or none at all for startup_timeout
	ClassCrash          Class = "crash"            // the backend's own process died
	ClassInvalidRequest Class = "invalid_request"  // the work as asked for can never succeed
	ClassIncomplete     Class = "incomplete"       // the agent ended its turn to wait for something that will not come
	ClassNotAccepted    Class = "not_accepted"     // the result does not meet the unit's acceptance check
)

// Follow is what happens to a unit after a failed run.
type Follow int

// What can follow a failed run.
const (
	// FollowFail ends the unit.
	FollowFail Follow = iota
	// FollowRetry tries again while max_retries lasts.
	FollowRetry
	// FollowRetryIfAsked tries again only when the caller gave max_retries
	// itself: such a run has already cost its full time and money.
	FollowRetryIfAsked
	// FollowWait tries again after a delay that uses up no retry.
	FollowWait
	// FollowPause does so too, and pauses the backend: it refuses every unit
	// until somebody mends it.
	FollowPause
)

type classRule struct {
	follow Follow
	advice string
}

var classes = map[Class]classRule{
	ClassInfra:          {FollowRetry, "The backend or the network failed. Retry; if it persists, run `piecework doctor`."},
	ClassRateLimit:      {FollowWait, "The provider's limit was reached. The unit goes on by itself when the limit resets."},
	ClassAuth:           {FollowPause, "The backend refuses the credentials. Set its API key or log its CLI in; the unit goes on by itself."},
	ClassBilling:        {FollowPause, "The account behind the backend has no credit. Top it up; the unit goes on by itself."},
	ClassContextTooLong: {FollowFail, "The input is longer than the model can take. Shorten it or choose another model, then retry."},
	ClassRefusal:        {FollowFail, "The model declined the task. Change the prompt, then retry."},
	ClassSchemaInvalid:  {FollowFail, "The answer does not fit output_schema. Loosen the schema or change the prompt, then retry."},
	ClassToolDenied:     {FollowFail, "The work needs a tool that is not allowed. Allow it for the backend, then retry."},
	ClassMaxTurns:       {FollowFail, "max_turns was reached. Retry with a larger max_turns."},
	ClassMaxCost:        {FollowFail, "max_cost_usd was reached. Retry with a larger max_cost_usd."},
	ClassTimeout:        {FollowRetryIfAsked, "The run took longer than allowed. Retry with a longer timeout."},
	ClassHang:           {FollowRetryIfAsked, "The backend went silent. Retry, or raise idle_timeout, or startup_timeout, if long silence is normal."},
	ClassCrash:          {FollowRetry, "The backend's process died. See the run's error for its last words."},
	ClassInvalidRequest: {FollowFail, "The work cannot be done as asked. Mend the request and submit it again."},
	ClassIncomplete:     {FollowFail, "The agent ended its turn to wait for something, twice. Tell it in the prompt to wait for nothing, then retry."},
	ClassNotAccepted:    {FollowFail, "The result does not meet accept. See what the check said; change the prompt or the check, then retry."},
}

// Classes lists every class, for documents and tests.
func Classes() []Class {
	return []Class{
		ClassInfra, ClassRateLimit, ClassAuth, ClassBilling, ClassContextTooLong, ClassRefusal, ClassSchemaInvalid,
		ClassToolDenied, ClassMaxTurns, ClassMaxCost, ClassTimeout, ClassHang, ClassCrash, ClassInvalidRequest, ClassIncomplete,
		ClassNotAccepted,
	}
}

// Follow tells what happens to a unit after a run that failed this way.
func (c Class) Follow() Follow { return classes[c].follow }

// Advice tells a person what to do about a failure of this class.
func (c Class) Advice() string { return classes[c].advice }

// Failure is why a run or a unit did not succeed.
type Failure struct {
	Class   Class  `json:"class"`
	Message string `json:"message"`
	// ResetAt is when a rate limit ends; zero when unknown.
	ResetAt time.Time `json:"reset_at,omitzero"`
	// WholeAccount: a rate limit holds for every model of the credential, not
	// only for the one that met it.
	WholeAccount bool `json:"-"`
}

// Fail makes a Failure.
func Fail(class Class, message string) *Failure { return &Failure{Class: class, Message: message} }

func (f *Failure) Error() string { return string(f.Class) + ": " + f.Message }
