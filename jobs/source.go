package jobs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"piecework/internal/blob"
	"piecework/internal/roots"
	"piecework/internal/source"
	"piecework/internal/work"
)

// items opens the source of a batch at a place. Objects of a bucket are brought
// into the file store where they are to be kept.
func (s *Submitter) items(ctx context.Context, b work.Batch, src batchSource, from source.Place, keep bool) (iter.Seq2[item, error],
	func(), error) {
	if src.Type == source.TypeFiles && s.Buckets.Has(src.Path) {
		bucket, err := s.Buckets.Open(ctx, src.Path)
		if err != nil {
			return nil, nil, err
		}
		objects := objects{s: s, bucket: bucket, batch: b, keep: keep}
		return withTemplate(b.Unit, objects.fetched(ctx, src.ReadNames(bucket.Names(ctx), src.Path, from))),
			func() { _ = bucket.Close() }, nil
	}
	if src.Type == source.TypeFiles {
		root, _, err := s.Roots.OpenDir(src.Path)
		if err != nil {
			return nil, nil, work.Invalidf("#/source/path", "%v", err)
		}
		return withTemplate(b.Unit, src.ReadDir(roots.FS(root), src.Path, from)), func() { _ = root.Close() }, nil
	}
	if src.Type == typeTrigger {
		items, err := s.Store.Batches.Items(ctx, b.ID)
		return withTemplate(b.Unit, delivered(src.Source, items, from)), func() {}, err
	}
	file, err := s.openSource(ctx, b.Tenant, src.Path)
	if err != nil {
		return nil, nil, err
	}
	closing := func() { _ = file.Close() }
	switch src.Type {
	case typeUnits:
		return filledUnits(file, from), closing, nil
	case TypeOpenAI:
		return s.openaiItems(ctx, &b, file, from), closing, nil
	case TypeAnthropic:
		return s.anthropicItems(ctx, &b, file, from), closing, nil
	}
	return withTemplate(b.Unit, src.Read(file, from)), closing, nil
}

// lacked is the root or bucket of a source that this process was not given; empty
// when it has it, or when the source is in neither.
func (s *Submitter) lacked(ref string) string {
	name, _, named := strings.Cut(ref, ":")
	switch {
	case filepath.IsAbs(ref) && len(s.Roots.Names()) == 0:
		return ref
	case filepath.IsAbs(ref) || !named || s.Buckets.Has(ref) || slices.Contains(s.Roots.Names(), name):
		return ""
	}
	return name
}

// openSource opens a file by what callers call it.
func (s *Submitter) openSource(ctx context.Context, tenant, ref string) (io.ReadSeekCloser, error) {
	if id, ok := work.UploadedFile(ref); ok {
		if _, err := s.Store.Files.Get(ctx, tenant, id); errors.Is(err, work.ErrNotFound) {
			return nil, work.Invalidf("#/source/path", "there is no uploaded file %s; upload it with POST /files", id)
		} else if err != nil {
			return nil, err
		}
		r, err := s.Files.Open(ctx, id)
		if errors.Is(err, blob.ErrMissing) {
			return nil, work.Invalidf("#/source/path", "%v", err)
		}
		return r, err
	}
	if s.Buckets.Has(ref) {
		name, inside, _ := strings.Cut(ref, ":")
		bucket, err := s.Buckets.Open(ctx, name+":")
		if err != nil {
			return nil, err
		}
		r, err := bucket.Read(ctx, strings.Trim(inside, "/"))
		if err != nil {
			_ = bucket.Close()
			return nil, work.Invalidf("#/source/path", "%v", err)
		}
		return openObject{r, bucket}, nil
	}
	file, _, err := s.Roots.Open(ref)
	if err != nil {
		return nil, work.Invalidf("#/source/path", "%v", err)
	}
	return file, nil
}

// openObject is an open object and its bucket.
type openObject struct {
	io.ReadSeekCloser
	bucket *blob.Bucket
}

func (o openObject) Close() error { return errors.Join(o.ReadSeekCloser.Close(), o.bucket.Close()) }

// objects are those of a bucket on their way to units.
type objects struct {
	s      *Submitter
	bucket *blob.Bucket
	batch  work.Batch
	keep   bool
}

// fetched gives each item the file that was made of its object. A look does not
// keep them: then there is no file_path yet.
func (o objects) fetched(ctx context.Context, items iter.Seq2[source.Item, error]) iter.Seq2[source.Item, error] {
	return func(yield func(source.Item, error) bool) {
		for item, err := range items {
			if err == nil {
				err = o.fetch(ctx, &item)
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

func (o objects) fetch(ctx context.Context, item *source.Item) error {
	payload := map[string]string{}
	if err := json.Unmarshal(item.Payload, &payload); err != nil {
		return err
	}
	payload["source"] = payload["file_path"]
	delete(payload, "file_path")
	if wrong := o.s.FilePolicy.Refuses(item.CustomID, 0); wrong != "" {
		item.Wrong = wrong
	} else if o.keep {
		file, err := o.file(ctx, item.CustomID, payload["file_name"])
		switch {
		case errors.Is(err, blob.ErrTooLarge):
			item.Wrong = fmt.Sprintf("is larger than %d bytes", o.s.FilePolicy.MaxBytes)
		case errors.Is(err, blob.ErrMissing):
			item.Wrong = "is gone"
		case err != nil:
			return err
		}
		payload["file_path"] = file.ID.String()
	}
	var err error
	item.Payload, err = json.Marshal(payload)
	return err
}

// file keeps an object as a file. Its id is that of the batch and the name, so
// whoever does it again after a death makes nothing twice.
func (o objects) file(ctx context.Context, name, short string) (work.File, error) {
	f := work.File{ID: uuid.NewSHA1(o.batch.ID, []byte(name)), Tenant: o.batch.Tenant, Name: short}
	if had, err := o.s.Store.Files.Get(ctx, f.Tenant, f.ID); err == nil {
		return had, nil
	}
	r, err := o.bucket.Read(ctx, name)
	if err != nil {
		return f, err
	}
	defer func() { _ = r.Close() }()
	if err := o.s.Store.Files.ExpectBlobs(ctx, []uuid.UUID{f.ID}); err != nil {
		return f, err
	}
	content := bufio.NewReader(r)
	head, err := content.Peek(blob.SniffBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return f, err
	}
	f.MediaType = blob.MediaType("", f.Name, head)
	stored, err := o.s.Files.Put(ctx, f.ID, content, o.s.FilePolicy.MaxBytes)
	if err != nil {
		o.s.RemoveBlob(ctx, f.ID)
		return f, err
	}
	f.Size, f.SHA256 = stored.Size, stored.SHA256
	return o.s.Store.Files.Add(ctx, f)
}
