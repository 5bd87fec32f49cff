package work

// Cache is what came of looking for a result that a unit could take over;
// empty: nobody looked.
type Cache string

// The ends of such a look.
const (
	CacheHit  Cache = "hit"  // the result is an earlier run's, and cost nothing
	CacheMiss Cache = "miss" // there was none, so the unit ran
)

// MaxCacheTTL is how old a result may be at most that is taken over. Older
// ones are forgotten.
const MaxCacheTTL = Seconds(366 * 24 * 3600)
