package jobs

import (
	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/roots"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/store"
)

// Rules are what an operator lets units, batches, triggers and schedules ask for.
// Their methods make such of what callers have written, or say what is wrong with it.
type Rules struct {
	Store      *store.Store
	Roots      roots.Roots
	Files      *blob.Store
	Buckets    blob.Buckets // that batches may read
	FilePolicy work.FilePolicy

	ProjectSettings string        // of units that do not say; work.SettingsNever: none may have them read
	MCPServers      []string      // names that units may use
	AcceptCommands  bool          // acceptance checks of units may be commands
	Webhooks        webhook.Guard // which addresses messages may go to
	// Prices are what models cost, as far as it is known here. Nil: no limit on
	// costs is refused.
	Prices *backend.Prices
}
