package claude

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"piecework/internal/work"
)

// disallowedTools are those of Claude Code's tools after which a turn ends before
// the work is done, because somebody is to come back: a timer, a task in the
// background, another session, a person. In a run without a terminal nobody
// does, and the process ends with its final result. So they are switched off.
// Subagents and shell commands stay, and run in the foreground: see env.
var disallowedTools = []string{
	"AskUserQuestion", "CronCreate", "CronDelete", "CronList", "EnterPlanMode", "ExitPlanMode", "ListAgents", "Monitor",
	"PushNotification", "RemoteTrigger", scheduleWakeup, "SendMessage", "SendUserMessage", "TeamCreate", "TeamDelete", "Workflow",
}

// scheduleWakeup is the tool that has the client go on at a later time.
const scheduleWakeup = "ScheduleWakeup"

// pendingTasks is what a turn of the client leaves behind: tasks in the
// background, and wake-ups.
type pendingTasks struct {
	running map[string]string // what they are, by id
	wakeups map[string]bool   // calls of scheduleWakeup that did not fail
}

func newPendingTasks() pendingTasks {
	return pendingTasks{running: map[string]string{}, wakeups: map[string]bool{}}
}

// taskEvent is what a system event tells of one task, or of all.
type taskEvent struct {
	TaskID       string `json:"task_id"`
	Description  string `json:"description"`
	Backgrounded bool   `json:"is_backgrounded"`
	Status       string `json:"status"`
	Patch        struct {
		Status string `json:"status"`
	} `json:"patch"`
	Tasks []struct {
		TaskID      string `json:"task_id"`
		Description string `json:"description"`
	} `json:"tasks"`
}

// take takes in a system event. Tasks in the foreground end before their call
// does.
func (t *pendingTasks) take(subtype string, e taskEvent) {
	switch subtype {
	case "background_tasks_changed":
		clear(t.running)
		for _, task := range e.Tasks {
			t.running[task.TaskID] = task.Description
		}
	case "task_started":
		if e.Backgrounded {
			t.running[e.TaskID] = e.Description
		}
	case "task_updated", "task_notification":
		if slices.Contains([]string{"completed", "failed", "stopped", "killed"}, e.Patch.Status+e.Status) {
			delete(t.running, e.TaskID)
		}
	}
}

// open says what is still to come, "" when nothing is.
func (t *pendingTasks) open() string {
	var parts []string
	if n := len(t.running); n > 0 {
		first, _ := work.Cut(t.running[slices.Min(slices.Collect(maps.Keys(t.running)))], 200)
		parts = append(parts, fmt.Sprintf("%d task(s) in the background (%s)", n, first))
	}
	if len(t.wakeups) > 0 {
		parts = append(parts, "a wake-up that was scheduled")
	}
	return strings.Join(parts, " and ")
}
