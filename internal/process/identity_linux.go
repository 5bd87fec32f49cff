package process

import (
	"fmt"
	"os"
	"strings"
)

// Self names this process so that another on the same machine can tell later
// whether it still lives: boot, pid namespace, pid and start time. It is empty
// where that cannot be told.
func Self() string {
	pid := os.Getpid()
	machine, start := machine(), startOf(pid)
	if machine == "" || start == "" {
		return ""
	}
	return fmt.Sprintf("%s %d-%s", machine, pid, start)
}

// Dead tells whether the process that Self named is surely gone. It is false
// whenever there is doubt, such as for a process of another machine or
// container.
func Dead(identity string) bool {
	where, who, ok := strings.Cut(identity, " ")
	if !ok || where != machine() {
		return false
	}
	return gone(who)
}

func machine() string {
	boot, err := bootID()
	if err != nil {
		return ""
	}
	namespace := pidNamespace()
	if namespace == "" {
		return ""
	}
	return boot + "/" + namespace
}

// bootID is this machine's, until it starts anew; containers have it too.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// pidNamespace names the numbers by which we know processes.
func pidNamespace() string {
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	return namespace
}
