package store

import (
	"context"
	"fmt"
	"time"

	"piecework/internal/work"
)

// Diagnose looks whether the Postgres at url is fit to be a ledger, and says
// how to mend what is not.
func Diagnose(ctx context.Context, url string) []work.Finding {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := Open(ctx, url, 1)
	if err != nil {
		return []work.Finding{{Name: "postgres", Status: work.FindingFail, Detail: err.Error(),
			Mend: "Start it, or set DATABASE_URL to postgres://USER:PASSWORD@HOST:5432/DATABASE. Until then no unit is accepted."}}
	}
	defer func() { _ = s.Close() }()
	var version int
	if err := s.db.GetContext(ctx, &version, `SELECT current_setting('server_version_num')::integer`); err != nil {
		return []work.Finding{{Name: "postgres", Status: work.FindingFail, Detail: err.Error(), Mend: "Check the user's rights."}}
	}
	findings := []work.Finding{{Name: "postgres", Status: work.FindingOK, Detail: fmt.Sprintf("reachable, version %d.%d", version/10000, version%10000)}}
	if version < 130000 {
		findings = append(findings, work.Finding{Name: "postgres version", Status: work.FindingFail, Detail: "older than 13", Mend: "Upgrade PostgreSQL to 13 or later."})
	}
	findings = append(findings, s.durability(ctx)...)
	return append(findings, s.schema(ctx))
}

// durability checks what a committed unit relies on.
func (s *Store) durability(ctx context.Context) []work.Finding {
	var findings []work.Finding
	for _, setting := range []struct {
		name string
		why  string
	}{
		{"fsync", "a power cut can destroy the database"},
		{"synchronous_commit", "a crash can forget units that were acknowledged"},
		{"full_page_writes", "a crash can tear pages"},
	} {
		var value string
		if err := s.db.GetContext(ctx, &value, `SELECT current_setting($1)`, setting.name); err != nil {
			findings = append(findings, work.Finding{Name: "postgres " + setting.name, Status: work.FindingWarn, Detail: err.Error(), Mend: "Check the user's rights."})
			continue
		}
		f := work.Finding{Name: "postgres " + setting.name, Status: work.FindingOK, Detail: value}
		if value == "off" {
			f.Status, f.Detail = work.FindingFail, "off: "+setting.why
			f.Mend = fmt.Sprintf("ALTER SYSTEM SET %s = on; SELECT pg_reload_conf();", setting.name)
		}
		findings = append(findings, f)
	}
	return findings
}

func (s *Store) schema(ctx context.Context) work.Finding {
	behind, err := s.Behind(ctx)
	switch {
	case err != nil:
		return work.Finding{Name: "postgres schema", Status: work.FindingFail, Detail: err.Error(), Mend: "Run `piecework migrate`."}
	case behind > 0:
		return work.Finding{Name: "postgres schema", Status: work.FindingFail, Detail: fmt.Sprintf("%d migrations behind", behind), Mend: "Run `piecework migrate`."}
	}
	return work.Finding{Name: "postgres schema", Status: work.FindingOK, Detail: "up to date"}
}
