package handlers

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"piecework/handlers/upkeep"
	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/jobs/queue"
)

// server is an Asynq server that runs.
type server struct {
	stop     func() // it takes no more tasks
	shutdown func() // it ends
}

// serveUnits starts an Asynq server for the messages of units.
func (w *Worker) serveUnits() (server, error) {
	weights := w.Queue.QueueWeights(w.Queues, w.health.All())
	if len(weights) == 0 {
		return server{func() {}, func() {}}, nil
	}
	return w.serve(weights, w.Slots, queue.Gate{Wait: w.wait, Took: w.dequeued, Spare: w.spare}, w.wakeUp, w.ProcessTask)
}

// serveDeliveries starts another for the messages of deliveries: slow receivers hold
// up no unit.
func (w *Worker) serveDeliveries() (server, error) {
	gate := queue.Gate{Wait: w.delivery.Wait, Took: func(string) {}}
	return w.serve(map[string]int{w.Queue.DeliveryQueue(): 1}, 1, gate, w.delivery.WakeUp, func(_ context.Context, t *asynq.Task) error {
		var task queue.DeliverTask
		if err := json.Unmarshal(t.Payload(), &task); err != nil {
			return fmt.Errorf("read task: %w", err)
		}
		w.delivery.Offer(task.Receiver) // it waits there, if it has to, and holds no task up
		return nil
	})
}

func (w *Worker) serve(weights map[string]int, slots int, gate queue.Gate, wakeUp upkeep.Signal, handle asynq.HandlerFunc) (server, error) {
	client := w.Queue.ServerClient(len(weights), gate, wakeUp)
	s := asynq.NewServerFromRedisClient(client, asynq.Config{
		Concurrency:       slots,
		Queues:            weights,
		TaskCheckInterval: queue.CheckInterval, DelayedTaskCheckInterval: queue.SweepInterval, JanitorInterval: queue.SweepInterval,
		ShutdownTimeout: time.Second, // nothing is left to wait for after our own drain
		Logger:          asynqLog{w.Log},
		LogLevel:        asynq.WarnLevel,
	})
	if err := s.Start(handle); err != nil {
		return server{}, fmt.Errorf("start asynq server: %w", err)
	}
	stop := func() {
		client.Release()
		w.await(s.Stop)
	}
	return server{stop, func() { w.await(s.Shutdown) }}, nil
}

// asynqPatience is how long a stop of Asynq's server may take: it waits a second
// for its handlers, which have all ended.
const asynqPatience = 2 * time.Second

// await waits for a stop of Asynq's server, but not for a Redis that says
// nothing: the server asks for each of its queues in turn. What it leaves undone its
// own recovery does, as after a crash.
func (w *Worker) await(stop func()) {
	ended := make(chan struct{})
	go func() { defer close(ended); stop() }()
	select {
	case <-ended:
	case <-time.After(asynqPatience):
		w.Queue.LeaveOpen() // Asynq's server still uses it
		w.Log.Warn("redis does not answer; not waiting for it")
	}
}

// ProcessTask handles one message. It does not return before the run's process
// tree is dead, whatever Asynq's own context says. The error of a failed run
// is for Asynqmon's counters; Postgres has it already.
func (w *Worker) ProcessTask(_ context.Context, t *asynq.Task) error {
	defer w.taken.Add(-1)
	var task queue.Task
	if err := json.Unmarshal(t.Payload(), &task); err != nil {
		return fmt.Errorf("read task: %w", err)
	}
	select {
	case w.slots <- struct{}{}:
	case <-w.drain.Done():
		return w.requeue(task.Unit)
	}
	defer func() { <-w.slots }()
	return w.runUnit(task.Unit)
}

// requeue enqueues a unit again whose message was taken and that cannot run here.
func (w *Worker) requeue(unit uuid.UUID) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	messages, err := w.Store.Queues.Redispatch(ctx, []uuid.UUID{unit})
	if err != nil {
		return err
	}
	return w.Queue.Enqueue(ctx, messages...)
}

// listen turns notices into action: a wake-up ends the wait for work; a cancel of a
// unit that runs here, a pause and a resume have the state of the runs read at once. A
// notice may be late or wrong, so it cancels nothing itself: Postgres says whether the
// run that goes on now was asked to stop.
func (w *Worker) listen(ctx context.Context) {
	w.Queue.Listen(ctx, func(n queue.Notice) {
		switch n.Kind {
		case queue.NoticeCancel:
			if w.runs.OfUnit(n.Unit) {
				w.heartbeat.CheckSoon()
			}
		case queue.NoticeWatch:
			w.runs.Watch(n.Units)
		case queue.NoticePause:
			w.heartbeat.CheckSoon()
		default:
			if n.Queue == w.Queue.DeliveryQueue() {
				w.delivery.WakeUp.Send()
				return
			}
			w.wakeUp.Send()
		}
	}, queue.NoticeWake, queue.NoticeCancel, queue.NoticePause, queue.NoticeWatch)
}

// wait tells how long until a unit of a queue and a backend may begin here.
func (w *Worker) wait(queue, backend string) time.Duration {
	b := w.health.Of(backend)
	if b == nil || w.isolating.Load() || w.pauses.Hold(queue, backend) || w.heartbeat.CutOff() || w.disk.Full() {
		return upkeep.Never
	}
	return b.Wait()
}

// dequeued counts a message that Asynq was given, until ProcessTask is done with it.
func (w *Worker) dequeued(backend string) {
	w.taken.Add(1)
	w.took(backend)
}

// took notes that a unit of a backend was taken.
func (w *Worker) took(backend string) {
	if b := w.health.Of(backend); b != nil {
		b.Took()
	}
}

// spare tells how many units of a backend this process can begin now. Agents are
// taken one by one: they keep a machine busy, and are spread over all of them. So
// are units while something holds a backend back.
func (w *Worker) spare(name string) int {
	if b := w.health.Of(name); b == nil || !b.Clear() || backend.Can(name, work.CanTools) {
		return 1
	}
	return w.Slots - max(int(w.taken.Load()), len(w.slots))
}

// asynqLog gives what Asynq logs to our log.
type asynqLog struct{ log *slog.Logger }

func (l asynqLog) Debug(args ...any) { l.log.Debug(fmt.Sprint(args...), "from", "asynq") }
func (l asynqLog) Info(args ...any)  { l.log.Debug(fmt.Sprint(args...), "from", "asynq") }
func (l asynqLog) Warn(args ...any)  { l.log.Debug(fmt.Sprint(args...), "from", "asynq") }
func (l asynqLog) Error(args ...any) { l.log.Warn(fmt.Sprint(args...), "from", "asynq") }
func (l asynqLog) Fatal(args ...any) { l.log.Error(fmt.Sprint(args...), "from", "asynq") }
