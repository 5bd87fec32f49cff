package fakecli

import "slices"

// begins has a task go on in the background. Only Claude Code has such.
func (a *agent) begins(name string) {
	a.tasks = append(a.tasks, name)
	a.tellTasks()
	writeJSON(map[string]any{
		"type": "system", "subtype": "task_started", "task_id": name, "description": name, "is_backgrounded": true,
		"task_type": "local_bash", "session_id": a.session,
	})
}

// ends has it end.
func (a *agent) ends(name string) {
	a.tasks = slices.DeleteFunc(a.tasks, func(task string) bool { return task == name })
	writeJSON(map[string]any{
		"type": "system", "subtype": "task_updated", "task_id": name, "patch": map[string]any{"status": "completed"}, "session_id": a.session,
	})
	a.tellTasks()
}

func (a *agent) tellTasks() {
	tasks := make([]map[string]any, len(a.tasks))
	for i, name := range a.tasks {
		tasks[i] = map[string]any{"task_id": name, "task_type": "local_bash", "description": name}
	}
	writeJSON(map[string]any{"type": "system", "subtype": "background_tasks_changed", "tasks": tasks, "session_id": a.session})
}
