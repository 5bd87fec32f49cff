package work

// The three things a Finding can say.
const (
	FindingOK   = "ok"
	FindingWarn = "warn" // works, with a risk that Detail names
	FindingFail = "fail" // does not work as it is
)

// Finding is what a look at one thing the house stands on came to.
type Finding struct {
	Name   string `json:"name"`           // what was looked at, such as "redis: maxmemory-policy"
	Status string `json:"status"`         // ok, warn or fail
	Detail string `json:"detail"`         // what was found
	Mend   string `json:"mend,omitempty"` // what to do about it; empty when all is well
}
