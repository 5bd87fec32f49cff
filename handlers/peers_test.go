package handlers

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/handlers/upkeep"
	"piecework/internal/process"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// peer is another worker process, and what it has claimed.
func (h *fixture) peer(identity string) (uuid.UUID, *store.Claimed) {
	h.t.Helper()
	if process.Self() == "" {
		h.t.Skip("this system does not say whether a process is the one that was")
	}
	p := work.Process{ID: uuid.Must(uuid.NewV7()), Identity: identity, Queues: []string{"default"}}
	id := h.submit(func(s *work.Spec) { s.Queue = "unheard" })
	if err := h.store.Processes.Register(h.t.Context(), p, 24*time.Hour); err != nil {
		h.t.Fatal(err)
	}
	c, err := h.store.Runs.Claim(h.t.Context(), store.Claim{UnitID: id, RunID: uuid.Must(uuid.NewV7()), Process: p.ID,
		Backends: []string{"mock"}})
	if err != nil || c == nil {
		h.t.Fatal(c, err)
	}
	return p.ID, c
}

// leaveLockFile leaves beside w's what a process leaves that has died.
func (w *worker) leaveLockFile(t *testing.T, dead uuid.UUID) (dir string) {
	t.Helper()
	own, err := filepath.Glob(filepath.Join(w.peers.Dir, "*", w.id.String()))
	if err != nil || len(own) != 1 {
		t.Fatalf("its own lock file: %v, %v", own, err)
	}
	dir = filepath.Dir(own[0])
	if err := os.WriteFile(filepath.Join(dir, dead.String()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A worker process of this machine that dies while another works is noticed by
// that one's next heartbeat: its units need not wait for the lease to run out. The
// agents that it left are ended.
func TestDeadPeerIsNoticedAtAHeartbeat(t *testing.T) { // not beside tests whose worker processes, when they start, end the agent
	h := newFixture(t)
	h.start(nil)
	agent := exec.CommandContext(t.Context(), "sleep", "1000")
	agent.Env = []string{"PIECEWORK_MARK=" + process.NewMark(uuid.NewString()) + "0"} // another start time
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Wait() }()
	_, c := h.peer(process.Self() + "0")
	if u := h.becomes(c.ID, work.Queued); u.Losses != 1 {
		t.Errorf("%d losses", u.Losses)
	}
	testkit.Eventually(t, "its agent is dead", func() bool { return len(ended) > 0 })
}

// The pid of one in another container says nothing; that its lock file is no
// longer locked does.
func TestDeadPeerOfAnotherContainer(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	dead, c := h.peer("")
	dir := w.leaveLockFile(t, dead)
	if u := h.becomes(c.ID, work.Queued); u.Losses != 1 {
		t.Errorf("%d losses", u.Losses)
	}
	testkit.Eventually(t, "only the living have lock files", func() bool {
		left, err := os.ReadDir(dir)
		return err == nil && len(left) == 1 && left[0].Name() == w.id.String()
	})
}

// What a peer had finished and could not hand in counts.
func TestDeadPeerHasFinished(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	dead, c := h.peer("")
	blob, err := h.store.Transcripts.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	upkeep.NewSpool(h.store, w.spool.Dir, nil, h.log).Keep(store.Finish{UnitID: c.ID, RunID: c.RunID, Attempt: 1,
		Status: work.RunSucceeded, Next: work.Succeeded, Result: "paid for", Blob: blob})
	w.leaveLockFile(t, dead)
	testkit.Eventually(t, "the dead one is removed", func() bool {
		processes, err := h.store.Processes.List(t.Context())
		return err == nil && len(processes) == 1
	})
	if u := h.becomes(c.ID, work.Succeeded); u.RunCount != 1 || u.Losses != 0 {
		t.Errorf("%d runs, %d losses", u.RunCount, u.Losses)
	}
}
