package process

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// proc is one line of the process table. Pid and start together are never
// reused.
type proc struct {
	pid, ppid, session int
	start              string
	zombie             bool
}

// tree is what belongs to one child: whoever carries its mark, lives in its
// session, or descends from one that was seen to belong to it.
type tree struct {
	root int
	mark string
	seen map[int]string // pid → start
}

func newTree(root int, mark string) *tree {
	return &tree{root: root, mark: mark, seen: map[int]string{root: startOf(root)}}
}

// look finds who belongs to the child now, and remembers them: the kernel
// forgets who was whose parent when the parent dies.
func (t *tree) look() []proc {
	table := processes()
	var marked map[int]string
	if t.mark != "" {
		marked = marks(table)
	}
	now := make(map[int]string, len(table))
	for _, p := range table {
		now[p.pid] = p.start
		if p.session == t.root || t.mark != "" && marked[p.pid] == t.mark {
			t.seen[p.pid] = p.start
		}
	}
	known := func(pid int) bool {
		start, ok := t.seen[pid]
		return ok && start == now[pid]
	}
	for grown := true; grown; { // a parent may come after its child in the table
		grown = false
		for _, p := range table {
			if !known(p.pid) && known(p.ppid) {
				t.seen[p.pid] = p.start
				grown = true
			}
		}
	}
	var members []proc
	for _, p := range table {
		if known(p.pid) && p.pid != t.root {
			members = append(members, p)
		}
	}
	return members
}

// quietLooks in a row must find nobody: a process in the midst of an exec
// shows no environment.
const quietLooks = 3

// sweep ends all that look finds, until there is nobody left to find.
func sweep(look func() []proc, end func(proc)) error {
	deadline := time.Now().Add(sweepLimit)
	for quiet := 0; ; {
		alive := endAll(look(), end)
		if quiet++; len(alive) > 0 {
			quiet = 0
		}
		if quiet == quietLooks {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v outlive SIGKILL", alive)
		}
		time.Sleep(4 * time.Millisecond)
	}
}

// endAll ends all that live, and reaps those that the kernel has made our
// children, as it does when we are a container's first process.
func endAll(members []proc, end func(proc)) (alive []int) {
	for _, p := range members {
		switch {
		case !p.zombie:
			alive = append(alive, p.pid)
			end(p)
		case p.ppid == os.Getpid():
			_, _ = syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil)
		}
	}
	return alive
}

// SweepDead kills what worker processes left that are no longer alive, and
// returns how many processes it found. Call it when a worker process starts.
func SweepDead() (int, error) {
	found := map[int]string{}
	look := func() []proc {
		var dead []proc
		table := processes()
		marks := marks(table)
		for _, p := range table {
			if p.pid == os.Getpid() || p.zombie || !orphaned(marks[p.pid]) {
				continue
			}
			dead = append(dead, p)
			found[p.pid] = p.start
		}
		return dead
	}
	// A supervisor finds what nobody else can; killed too early, it could not. It is
	// the first to know that its worker process is dead, which may have died a
	// moment ago: each supervisor has its time from when it was found.
	supervisors := map[int]time.Time{}
	end := func(p proc) {
		if isSupervisor(p.pid) {
			if _, known := supervisors[p.pid]; !known {
				supervisors[p.pid] = time.Now()
			}
			if time.Since(supervisors[p.pid]) < supervisorLimit {
				_ = syscall.Kill(p.pid, syscall.SIGCONT) // its agent may have stopped it
				return
			}
		}
		kill(p)
	}
	err := sweep(look, end)
	return len(found), err
}

// supervisorLimit is how long a supervisor whose worker process has died may take to
// end what it keeps.
const supervisorLimit = 5 * time.Second

// Marked returns the living processes whose mark match holds for.
func Marked(match func(mark string) bool) []int {
	var pids []int
	table := processes()
	marks := marks(table)
	for _, p := range table {
		if mark := marks[p.pid]; mark != "" && !p.zombie && match(mark) {
			pids = append(pids, p.pid)
		}
	}
	return pids
}
