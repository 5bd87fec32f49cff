package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// The names that callers use until they are moved.

func (s *Store) AddBatch(p00 context.Context, p10 NewBatch) (work.Batch, bool, error) {
	return s.Batches.Add(p00, p10)
}
func (s *Store) BatchBefore(p00 context.Context, p10 string, p11 string, p20 []byte) (work.Batch, error) {
	return s.Batches.Before(p00, p10, p11, p20)
}
func (s *Store) Batch(p00 context.Context, p10 string, p20 uuid.UUID) (work.Batch, error) {
	return s.Batches.Get(p00, p10, p20)
}
func (s *Store) ListBatches(p00 context.Context, p10 BatchFilter) ([]work.Batch, *uuid.UUID, error) {
	return s.Batches.List(p00, p10)
}
func (s *Store) BatchResults(p00 context.Context, p10 uuid.UUID, p20 []work.State, p30 func(BatchResult) error) error {
	return s.Batches.Results(p00, p10, p20, p30)
}
func (s *Store) BatchResultsAfter(p00 context.Context, p10 uuid.UUID, p20 []work.State, p30 uuid.UUID, p40 int, p50 func(BatchResult) error) error {
	return s.Batches.ResultsAfter(p00, p10, p20, p30, p40, p50)
}
func (s *Store) BatchTitle(p00 context.Context, p10 string, p20 uuid.UUID) (string, error) {
	return s.Batches.Title(p00, p10, p20)
}
func (s *Store) CountBatches(p00 context.Context, p10 BatchFilter, p20 int) (map[work.BatchStatus]int, error) {
	return s.Batches.Count(p00, p10, p20)
}
func (s *Store) BatchHeads(p00 context.Context) (map[uuid.UUID]string, error) {
	return s.Batches.Heads(p00)
}
func (s *Store) BatchFailures(p00 context.Context, p10 uuid.UUID, p20 int) ([]BatchFailure, error) {
	return s.Batches.Failures(p00, p10, p20)
}
func (s *Store) BatchPace(p00 context.Context, p10 string, p20 uuid.UUID, p30 time.Duration) (BatchPace, error) {
	return s.Batches.Pace(p00, p10, p20, p30)
}
func (s *Store) PurposeFiles(p00 context.Context, p10 PurposeFilter) ([]PurposeFile, bool, error) {
	return s.Files.ListByPurpose(p00, p10)
}
func (s *Store) BatchFile(p00 context.Context, p10 string, p20 uuid.UUID, p30 string) (PurposeFile, error) {
	return s.Files.OfBatch(p00, p10, p20, p30)
}
func (s *Store) SetBatchFileSizes(p00 context.Context, p10 uuid.UUID, p20 int, p30 int64, p31 int64) error {
	return s.Files.SetBatchSizes(p00, p10, p20, p30, p31)
}
func (s *Store) DeleteBatchFile(p00 context.Context, p10 string, p20 uuid.UUID, p30 string) error {
	return s.Files.DeleteOfBatch(p00, p10, p20, p30)
}
func (s *Store) DeleteBatch(p00 context.Context, p10 string, p20 uuid.UUID) error {
	return s.Batches.Delete(p00, p10, p20)
}
func (s *Store) FillBatch(p00 context.Context, p10 uuid.UUID) (*Filling, error) {
	return s.Batches.ClaimEnumeration(p00, p10)
}
func (s *Store) KeepFilling(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID) error {
	return s.Batches.RenewEnumeration(p00, p10, p11)
}
func (s *Store) LeaveBatch(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 time.Duration) error {
	return s.Batches.LeaveEnumeration(p00, p10, p11, p20)
}
func (s *Store) FillMore(p00 context.Context, p10 Filled) error { return s.Batches.AddChunk(p00, p10) }
func (s *Store) EndFill(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID) error {
	return s.Batches.FinishEnumeration(p00, p10, p11)
}
func (s *Store) FailFill(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 string, p30 []work.BatchProblem) error {
	return s.Batches.FailEnumeration(p00, p10, p11, p20, p30)
}
func (s *Store) Synthesize(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 NewUnit) (work.Unit, error) {
	return s.Batches.Synthesize(p00, p10, p11, p20)
}
func (s *Store) LiveBatches(p00 context.Context, p10 bool) ([]uuid.UUID, error) {
	return s.Batches.Live(p00, p10)
}
func (s *Store) AdvanceBatch(p00 context.Context, p10 uuid.UUID) (Advanced, error) {
	return s.Batches.Advance(p00, p10)
}
func (s *Store) ApproveBatch(p00 context.Context, p10 string, p20 uuid.UUID, p30 BatchChanges) (work.Batch, error) {
	return s.Batches.Approve(p00, p10, p20, p30)
}
func (s *Store) PauseBatch(p00 context.Context, p10 string, p20 uuid.UUID, p30 string, p31 string) (work.Batch, error) {
	return s.Batches.Pause(p00, p10, p20, p30, p31)
}
func (s *Store) ResumeBatch(p00 context.Context, p10 string, p20 uuid.UUID, p30 BatchChanges) (work.Batch, error) {
	return s.Batches.Resume(p00, p10, p20, p30)
}
func (s *Store) CancelBatch(p00 context.Context, p10 string, p20 uuid.UUID, p30 string) (work.Batch, error) {
	return s.Batches.Cancel(p00, p10, p20, p30)
}
func (s *Store) RetryBatch(p00 context.Context, p10 string, p20 uuid.UUID, p30 []work.State) ([]Moved, bool, error) {
	return s.Batches.Retry(p00, p10, p20, p30)
}
func (s *Store) TriedBatch(p00 context.Context, p10 string, p20 uuid.UUID) (work.Batch, Trial, error) {
	return s.Batches.GetTested(p00, p10, p20)
}
func (s *Store) Cached(p00 context.Context, p10 string, p20 []byte, p30 time.Duration) (*Cached, error) {
	return s.Runs.Cached(p00, p10, p20, p30)
}
func (s *Store) PruneCache(p00 context.Context, p10 int) (int, error) {
	return s.Retention.PruneCache(p00, p10)
}
func (s *Store) TestEndpoint(p00 context.Context, p10 string, p20 uuid.UUID) (work.Delivery, error) {
	return s.Deliveries.AddTest(p00, p10, p20)
}
func (s *Store) Delivery(p00 context.Context, p10 string, p20 uuid.UUID) (work.Delivery, error) {
	return s.Deliveries.Get(p00, p10, p20)
}
func (s *Store) ListDeliveries(p00 context.Context, p10 DeliveryFilter) ([]work.Delivery, *uuid.UUID, error) {
	return s.Deliveries.List(p00, p10)
}
func (s *Store) Redeliver(p00 context.Context, p10 string, p20 uuid.UUID) (work.Delivery, error) {
	return s.Deliveries.Redeliver(p00, p10, p20)
}
func (s *Store) RedeliverAll(p00 context.Context, p10 DeliveryFilter) (int, error) {
	return s.Deliveries.RedeliverAll(p00, p10)
}
func (s *Store) UnheardDeliveries(p00 context.Context, p10 int) ([]DeliveryBell, error) {
	return s.Deliveries.Redispatch(p00, p10)
}
func (s *Store) DoubtDeliveries(p00 context.Context) error { return s.Deliveries.RecheckAll(p00) }
func (s *Store) DueReceivers(p00 context.Context, p10 int) ([]uuid.UUID, error) {
	return s.Deliveries.DueReceivers(p00, p10)
}
func (s *Store) ClaimDelivery(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 time.Duration, p30 string) (*ClaimedDelivery, error) {
	return s.Deliveries.Claim(p00, p10, p11, p20, p30)
}
func (s *Store) Tried(p00 context.Context, p10 Try) (work.DeliveryState, error) {
	return s.Deliveries.Finish(p00, p10)
}
func (s *Store) Slow(p00 context.Context, p10 uuid.UUID, p20 time.Duration) error {
	return s.Deliveries.Defer(p00, p10, p20)
}
func (s *Store) ExpireDeliveries(p00 context.Context) (int64, error) {
	return s.Deliveries.ExpireLeases(p00)
}
func (s *Store) PruneDeliveries(p00 context.Context, p10 time.Time, p20 int) (int, error) {
	return s.Retention.PruneDeliveries(p00, p10, p20)
}
func (s *Store) LiveUnit(p00 context.Context, p10 uuid.UUID, p20 int) (LiveUnit, []LiveRun, error) {
	return s.Events.Unit(p00, p10, p20)
}
func (s *Store) Heads(p00 context.Context, p10 []uuid.UUID) ([]Head, error) {
	return s.Events.Heads(p00, p10)
}
func (s *Store) Now(p00 context.Context) (Moment, error) { return s.Events.Now(p00) }
func (s *Store) ChangedUnits(p00 context.Context, p10 Moment, p20 int) ([]LiveUnit, Moment, error) {
	return s.Events.Changed(p00, p10, p20)
}
func (s *Store) ExpectBlobs(p00 context.Context, p10 []uuid.UUID) error {
	return s.Files.ExpectBlobs(p00, p10)
}
func (s *Store) StrayBlobs(p00 context.Context, p10 int) ([]uuid.UUID, error) {
	return s.Files.StrayBlobs(p00, p10)
}
func (s *Store) BlobsGone(p00 context.Context, p10 []uuid.UUID) error {
	return s.Files.BlobsGone(p00, p10)
}
func (s *Store) AddFile(p00 context.Context, p10 work.File) (work.File, error) {
	return s.Files.Add(p00, p10)
}
func (s *Store) File(p00 context.Context, p10 string, p20 uuid.UUID) (work.File, error) {
	return s.Files.Get(p00, p10, p20)
}
func (s *Store) FilesByID(p00 context.Context, p10 string, p20 []uuid.UUID) (map[uuid.UUID]work.File, error) {
	return s.Files.ByID(p00, p10, p20)
}
func (s *Store) ListFiles(p00 context.Context, p10 FileFilter) ([]work.File, *uuid.UUID, error) {
	return s.Files.List(p00, p10)
}
func (s *Store) DeleteFile(p00 context.Context, p10 string, p20 uuid.UUID) error {
	return s.Files.Delete(p00, p10, p20)
}
func (s *Store) ExpireFiles(p00 context.Context, p10 int) (int, error) {
	return s.Retention.ExpireFiles(p00, p10)
}
func (s *Store) Finish(p00 context.Context, p10 Finish) (Verdict, error) {
	return s.Runs.Finish(p00, p10)
}
func (s *Store) Lead(p00 context.Context, p10 <-chan time.Time, p20 func(context.Context)) (bool, error) {
	return s.Reconciler.Lead(p00, p10, p20)
}
func (s *Store) Cancel(p00 context.Context, p10 string, p20 uuid.UUID) (work.Unit, error) {
	return s.Units.Cancel(p00, p10, p20)
}
func (s *Store) Retry(p00 context.Context, p10 string, p20 uuid.UUID, p30 Changes) (work.Unit, error) {
	return s.Units.Retry(p00, p10, p20, p30)
}
func (s *Store) RetryAll(p00 context.Context, p10 UnitFilter, p20 Changes) ([]Moved, bool, error) {
	return s.Units.RetryAll(p00, p10, p20)
}
func (s *Store) CancelAll(p00 context.Context, p10 UnitFilter) ([]Moved, bool, error) {
	return s.Units.CancelAll(p00, p10)
}
func (s *Store) PreviewRetry(p00 context.Context, p10 UnitFilter, p20 Changes, p30 int) (Preview, error) {
	return s.Units.PreviewRetry(p00, p10, p20, p30)
}
func (s *Store) PreviewCancel(p00 context.Context, p10 UnitFilter, p20 int) (Preview, error) {
	return s.Units.PreviewCancel(p00, p10, p20)
}
func (s *Store) Tally(p00 context.Context, p10 string) (bool, error) {
	return s.Overview.Tally(p00, p10)
}
func (s *Store) ReconcilerSeen(p00 context.Context) (*time.Duration, error) {
	return s.Overview.ReconcilerSeen(p00)
}
func (s *Store) Figures(p00 context.Context, p10 string, p20 work.Window, p30 time.Time) (work.Figures, error) {
	return s.Overview.Figures(p00, p10, p20, p30)
}
func (s *Store) Pause(p00 context.Context, p10 PauseKind, p20 string, p21 string, p22 string) (Pause, error) {
	return s.Pauses.Pause(p00, p10, p20, p21, p22)
}
func (s *Store) Resume(p00 context.Context, p10 PauseKind, p20 string) (Pause, error) {
	return s.Pauses.Resume(p00, p10, p20)
}
func (s *Store) ListPauses(p00 context.Context) ([]Pause, error) { return s.Pauses.List(p00) }
func (s *Store) ListQueues(p00 context.Context, p10 string) ([]Queue, error) {
	return s.Queues.List(p00, p10)
}
func (s *Store) Pending(p00 context.Context, p10 CheckCursor) (Pending, error) {
	return s.Reconciler.Pending(p00, p10)
}
func (s *Store) Register(p00 context.Context, p10 work.Process, p20 time.Duration) error {
	return s.Processes.Register(p00, p10, p20)
}
func (s *Store) Beat(p00 context.Context, p10 uuid.UUID, p20 time.Duration, p30 int, p40 []work.Offer) error {
	return s.Processes.Heartbeat(p00, p10, p20, p30, p40)
}
func (s *Store) News(p00 context.Context, p10 uuid.UUID) (News, error) {
	return s.Processes.Assignments(p00, p10)
}
func (s *Store) Stop(p00 context.Context, p10 uuid.UUID) error { return s.Processes.Stop(p00, p10) }
func (s *Store) Bury(p00 context.Context, p10 []uuid.UUID) (int64, error) {
	return s.Processes.EndDead(p00, p10)
}
func (s *Store) Block(p00 context.Context, p10 uuid.UUID, p20 string) error {
	return s.Processes.Block(p00, p10, p20)
}
func (s *Store) Leases(p00 context.Context) ([]Lease, time.Time, error) {
	return s.Processes.Leases(p00)
}
func (s *Store) LeasesAndLead(p00 context.Context) ([]Lease, time.Time, bool, error) {
	return s.Processes.LeasesAndLead(p00)
}
func (s *Store) EndLeases(p00 context.Context, p10 []Lease) (int64, error) {
	return s.Processes.EndLeases(p00, p10)
}
func (s *Store) ListProcesses(p00 context.Context) ([]work.Process, error) {
	return s.Processes.List(p00)
}
func (s *Store) UnusedAnswers(p00 context.Context, p10 []string, p20 int) ([]UnusedAnswer, error) {
	return s.ProviderBatches.UnusedAnswers(p00, p10, p20)
}
func (s *Store) ChargeAnswer(p00 context.Context, p10 uuid.UUID, p20 *float64) error {
	return s.ProviderBatches.ChargeAnswer(p00, p10, p20)
}
func (s *Store) PruneAnswers(p00 context.Context, p10 int) (int, error) {
	return s.Retention.PruneAnswers(p00, p10)
}
func (s *Store) PackUnits(p00 context.Context, p10 string, p20 int) (int64, error) {
	return s.ProviderBatches.Pack(p00, p10, p20)
}
func (s *Store) HoldProviderBatch(p00 context.Context, p10 uuid.UUID, p20 []string) (*ProviderBatch, error) {
	return s.ProviderBatches.Claim(p00, p10, p20)
}
func (s *Store) SendingProviderBatch(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 int) error {
	return s.ProviderBatches.Sending(p00, p10, p11, p20)
}
func (s *Store) SentProviderBatch(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 string, p30 time.Duration) error {
	return s.ProviderBatches.Sent(p00, p10, p11, p20, p30)
}
func (s *Store) FoundProviderBatch(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 string, p30 bool) error {
	return s.ProviderBatches.Found(p00, p10, p11, p20, p30)
}
func (s *Store) TradeProviderBatch(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p12 uuid.UUID) (bool, error) {
	return s.ProviderBatches.Swap(p00, p10, p11, p12)
}
func (s *Store) UnsentProviderBatch(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 string, p30 time.Duration) error {
	return s.ProviderBatches.Unsent(p00, p10, p11, p20, p30)
}
func (s *Store) LeaveProviderBatch(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 int, p30 string, p40 time.Duration) error {
	return s.ProviderBatches.Leave(p00, p10, p11, p20, p30, p40)
}
func (s *Store) KnownRemotes(p00 context.Context, p10 string, p20 []string) ([]string, error) {
	return s.ProviderBatches.KnownRemotes(p00, p10, p20)
}
func (s *Store) PackedUnits(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 int) ([]work.Unit, error) {
	return s.ProviderBatches.Units(p00, p10, p11, p20)
}
func (s *Store) AnyPacked(p00 context.Context, p10 uuid.UUID) (bool, error) {
	return s.ProviderBatches.AnyUnits(p00, p10)
}
func (s *Store) UnpackLive(p00 context.Context, p10 uuid.UUID, p20 []uuid.UUID) error {
	return s.ProviderBatches.UnpackLive(p00, p10, p20)
}
func (s *Store) UnpackFrom(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID) error {
	return s.ProviderBatches.UnpackFrom(p00, p10, p11)
}
func (s *Store) LateUnits(p00 context.Context) (int64, error) {
	return s.ProviderBatches.UnpackLate(p00)
}
func (s *Store) FinishProviderBatch(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 *work.Failure) (int64, error) {
	return s.ProviderBatches.Finish(p00, p10, p11, p20)
}
func (s *Store) TakeAnswers(p00 context.Context, p10 uuid.UUID, p20 []ProviderAnswer) error {
	return s.ProviderBatches.AddAnswers(p00, p10, p20)
}
func (s *Store) Answer(p00 context.Context, p10 uuid.UUID) (*ProviderAnswer, error) {
	return s.ProviderBatches.Answer(p00, p10)
}
func (s *Store) ForgetAnswer(p00 context.Context, p10 uuid.UUID) error {
	return s.ProviderBatches.ForgetAnswer(p00, p10)
}
func (s *Store) BatchLaneOf(p00 context.Context, p10 uuid.UUID) (BatchLane, error) {
	return s.ProviderBatches.LaneOf(p00, p10)
}
func (s *Store) ExpireLeases(p00 context.Context) (int64, error) { return s.Runs.ExpireLeases(p00) }
func (s *Store) GiveUp(p00 context.Context, p10 uuid.UUID, p20 Owned, p30 bool) error {
	return s.Runs.GiveUp(p00, p10, p20, p30)
}
func (s *Store) ExpireDeadlines(p00 context.Context) (int64, error) {
	return s.Units.ExpireDeadlines(p00)
}
func (s *Store) Unchecked(p00 context.Context, p10 CheckCursor, p20 int) ([]Dispatch, CheckCursor, error) {
	return s.Queues.Unchecked(p00, p10, p20)
}
func (s *Store) Defer(p00 context.Context, p10 uuid.UUID, p11 uuid.UUID, p20 time.Duration) error {
	return s.Queues.Defer(p00, p10, p11, p20)
}
func (s *Store) Doubt(p00 context.Context, p10 []uuid.UUID) error { return s.Queues.Recheck(p00, p10) }
func (s *Store) Redispatch(p00 context.Context, p10 []uuid.UUID) ([]Dispatch, error) {
	return s.Queues.Redispatch(p00, p10)
}
func (s *Store) RecheckAll(p00 context.Context) (int64, error) { return s.Queues.RecheckAll(p00) }
func (s *Store) ModelOf(p00 context.Context, p10 uuid.UUID) (ModelOf, error) {
	return s.Units.ModelOf(p00, p10)
}
func (s *Store) Untaken(p00 context.Context, p10 []Dispatch) ([]uuid.UUID, error) {
	return s.Queues.Untaken(p00, p10)
}
func (s *Store) ClockBack(p00 context.Context, p10 time.Duration) (int64, error) {
	return s.Reconciler.ClockBack(p00, p10)
}
func (s *Store) Due(p00 context.Context, p10 []string, p11 []string, p20 []ModelOf, p30 int) ([]Dispatch, error) {
	return s.Queues.Due(p00, p10, p11, p20, p30)
}
func (s *Store) Epoch(p00 context.Context, p10 string) (string, error) {
	return s.Queues.Epoch(p00, p10)
}
func (s *Store) Tidy(p00 context.Context, p10 func(context.Context) error) (bool, error) {
	return s.Retention.Lead(p00, p10)
}
func (s *Store) PruneUnits(p00 context.Context, p10 string, p20 time.Time, p30 int) (int, error) {
	return s.Retention.PruneUnits(p00, p10, p20, p30)
}
func (s *Store) DeleteUnit(p00 context.Context, p10 string, p20 uuid.UUID) error {
	return s.Units.Delete(p00, p10, p20)
}
func (s *Store) PruneBatches(p00 context.Context, p10 string, p20 time.Time, p30 int) (int, error) {
	return s.Retention.PruneBatches(p00, p10, p20, p30)
}
func (s *Store) PurgeBatches(p00 context.Context, p10 int) (int, error) {
	return s.Retention.PurgeBatches(p00, p10)
}
func (s *Store) PruneUploads(p00 context.Context, p10 string, p20 time.Time, p30 int) (int, error) {
	return s.Retention.PruneUploads(p00, p10, p20, p30)
}
func (s *Store) PruneTranscripts(p00 context.Context, p10 time.Time, p20 int) (int, error) {
	return s.Retention.PruneTranscripts(p00, p10, p20)
}
func (s *Store) PruneKeys(p00 context.Context, p10 time.Time, p20 int) (int, error) {
	return s.Retention.PruneKeys(p00, p10, p20)
}
func (s *Store) PruneProcesses(p00 context.Context, p10 time.Time, p20 int) (int, error) {
	return s.Retention.PruneProcesses(p00, p10, p20)
}
func (s *Store) PruneProviderBatches(p00 context.Context, p10 time.Time, p20 int) (int, error) {
	return s.Retention.PruneProviderBatches(p00, p10, p20)
}
func (s *Store) PrunePauses(p00 context.Context, p10 time.Time, p20 int) (int, error) {
	return s.Retention.PrunePauses(p00, p10, p20)
}
func (s *Store) PreviewPrune(p00 context.Context, p10 string, p20 time.Time) (Old, error) {
	return s.Retention.Preview(p00, p10, p20)
}
func (s *Store) Leftover(p00 context.Context, p10 []uuid.UUID) (map[uuid.UUID]bool, map[uuid.UUID]bool, error) {
	return s.Retention.Leftover(p00, p10)
}
func (s *Store) Claim(p00 context.Context, p10 Claim) (*Claimed, error) {
	return s.Runs.Claim(p00, p10)
}
func (s *Store) Run(p00 context.Context, p10 string, p20 uuid.UUID) (work.Run, error) {
	return s.Runs.Get(p00, p10, p20)
}
func (s *Store) UnitRuns(p00 context.Context, p10 uuid.UUID) ([]work.Run, error) {
	return s.Runs.OfUnit(p00, p10)
}
func (s *Store) UnitUsage(p00 context.Context, p10 uuid.UUID) (work.Usage, error) {
	return s.Runs.UnitUsage(p00, p10)
}
func (s *Store) LiveRuns(p00 context.Context, p10 []uuid.UUID) (map[uuid.UUID]work.Run, error) {
	return s.Runs.Live(p00, p10)
}
func (s *Store) ListRuns(p00 context.Context, p10 RunFilter) ([]work.Run, *uuid.UUID, error) {
	return s.Runs.List(p00, p10)
}
func (s *Store) PutSchedule(p00 context.Context, p10 work.Schedule) (work.Schedule, error) {
	return s.Schedules.Put(p00, p10)
}
func (s *Store) Schedule(p00 context.Context, p10 string, p11 string) (work.Schedule, error) {
	return s.Schedules.Get(p00, p10, p11)
}
func (s *Store) ListSchedules(p00 context.Context, p10 string) ([]work.Schedule, error) {
	return s.Schedules.List(p00, p10)
}
func (s *Store) DeleteSchedule(p00 context.Context, p10 string, p11 string) error {
	return s.Schedules.Delete(p00, p10, p11)
}
func (s *Store) DueSchedules(p00 context.Context, p10 int) ([]work.Schedule, time.Time, error) {
	return s.Schedules.Due(p00, p10)
}
func (s *Store) Scheduled(p00 context.Context, p10 work.Schedule, p20 time.Time, p30 uuid.UUID) error {
	return s.Schedules.Advance(p00, p10, p20, p30)
}
func (s *Store) Append(p00 context.Context, p10 Progress) error {
	return s.Transcripts.Append(p00, p10)
}
func (s *Store) Transcript(p00 context.Context, p10 string, p20 uuid.UUID) (*Transcript, error) {
	return s.Transcripts.Open(p00, p10, p20)
}
func (s *Store) StepsAfter(p00 context.Context, p10 uuid.UUID, p20 int) ([]transcript.Step, error) {
	return s.Transcripts.StepsAfter(p00, p10, p20)
}
func (s *Store) Encode(p00 []transcript.Step) ([]byte, error) { return s.Transcripts.Encode(p00) }
func (s *Store) FoldLost(p00 context.Context, p10 int) (int, error) {
	return s.Transcripts.FoldLost(p00, p10)
}
func (s *Store) PutTrigger(p00 context.Context, p10 work.Trigger) (work.Trigger, error) {
	return s.Triggers.Put(p00, p10)
}
func (s *Store) Trigger(p00 context.Context, p10 string, p11 string) (work.Trigger, error) {
	return s.Triggers.Get(p00, p10, p11)
}
func (s *Store) ListTriggers(p00 context.Context, p10 string) ([]work.Trigger, error) {
	return s.Triggers.List(p00, p10)
}
func (s *Store) DeleteTrigger(p00 context.Context, p10 string, p11 string) error {
	return s.Triggers.Delete(p00, p10, p11)
}
func (s *Store) TriggerDeliveries(p00 context.Context, p10 TriggerDeliveryFilter) ([]work.TriggerDelivery, *uuid.UUID, error) {
	return s.Triggers.Received(p00, p10)
}
func (s *Store) Decline(p00 context.Context, p10 work.TriggerDelivery) (work.TriggerDelivery, error) {
	return s.Triggers.Decline(p00, p10)
}
func (s *Store) PruneTriggerDeliveries(p00 context.Context, p10 time.Time, p20 int) (int, error) {
	return s.Retention.PruneTriggerDeliveries(p00, p10, p20)
}
func (s *Store) DeliverBatch(p00 context.Context, p10 NewBatch, p20 work.TriggerDelivery) (work.TriggerDelivery, error) {
	return s.Triggers.AddBatch(p00, p10, p20)
}
func (s *Store) Redelivered(p00 context.Context, p10 work.TriggerDelivery) (work.TriggerDelivery, error) {
	return s.Triggers.Redelivered(p00, p10)
}
func (s *Store) BatchItems(p00 context.Context, p10 uuid.UUID) (json.RawMessage, error) {
	return s.Batches.Items(p00, p10)
}
func (s *Store) Accept(p00 context.Context, p10 NewUnit) (work.Unit, bool, error) {
	return s.Units.Accept(p00, p10)
}
func (s *Store) Before(p00 context.Context, p10 string, p11 string, p20 []byte) (work.Unit, error) {
	return s.Units.Before(p00, p10, p11, p20)
}
func (s *Store) Unit(p00 context.Context, p10 string, p20 uuid.UUID) (work.Unit, error) {
	return s.Units.Get(p00, p10, p20)
}
func (s *Store) State(p00 context.Context, p10 string, p20 uuid.UUID) (work.State, error) {
	return s.Units.State(p00, p10, p20)
}
func (s *Store) Place(p00 context.Context, p10 work.Unit) (Place, error) {
	return s.Queues.Place(p00, p10)
}
func (s *Store) ListUnits(p00 context.Context, p10 UnitFilter) ([]work.Unit, *uuid.UUID, error) {
	return s.Units.List(p00, p10)
}
func (s *Store) CountUnits(p00 context.Context, p10 UnitFilter, p20 int) (map[work.State]int, bool, error) {
	return s.Units.Count(p00, p10, p20)
}
func (s *Store) AddEndpoint(p00 context.Context, p10 work.Endpoint, p20 string) (work.Endpoint, error) {
	return s.Endpoints.Add(p00, p10, p20)
}
func (s *Store) Endpoint(p00 context.Context, p10 string, p20 uuid.UUID) (work.Endpoint, error) {
	return s.Endpoints.Get(p00, p10, p20)
}
func (s *Store) ListEndpoints(p00 context.Context, p10 string) ([]work.Endpoint, error) {
	return s.Endpoints.List(p00, p10)
}
func (s *Store) PutEndpoint(p00 context.Context, p10 work.Endpoint, p20 bool) (work.Endpoint, error) {
	return s.Endpoints.Put(p00, p10, p20)
}
func (s *Store) EndpointGone(p00 context.Context, p10 uuid.UUID, p20 string) (bool, error) {
	return s.Endpoints.DisableGone(p00, p10, p20)
}
func (s *Store) DeleteEndpoint(p00 context.Context, p10 string, p20 uuid.UUID) error {
	return s.Endpoints.Delete(p00, p10, p20)
}
func (s *Store) EndpointSecrets(p00 context.Context, p10 string, p20 uuid.UUID) (work.Secrets, error) {
	return s.Endpoints.Secrets(p00, p10, p20)
}
func (s *Store) RotateEndpoint(p00 context.Context, p10 string, p20 uuid.UUID, p30 string, p40 time.Duration) (work.Secrets, error) {
	return s.Endpoints.Rotate(p00, p10, p20, p30, p40)
}
func (s *Store) CallbackSecrets(p00 context.Context, p10 string, p11 string) (work.Secrets, error) {
	return s.Endpoints.CallbackSecrets(p00, p10, p11)
}
func (s *Store) RotateCallbacks(p00 context.Context, p10 string, p11 string, p20 time.Duration) (work.Secrets, error) {
	return s.Endpoints.RotateCallbacks(p00, p10, p11, p20)
}
func (s *Store) SetPublicURL(p00 context.Context, p10 string) error {
	return s.Endpoints.SetPublicURL(p00, p10)
}
