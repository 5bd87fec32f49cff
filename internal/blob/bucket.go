package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/gcerrors"
)

// Buckets are named places that batches may read objects from, and nothing
// else. The names are an operator's: callers cannot reach another bucket with
// this server's credentials.
type Buckets struct {
	addresses map[string]string
}

var bucketName = regexp.MustCompile(`^[a-z0-9_-]+$`)

// ParseBuckets reads "name=s3://BUCKET/PREFIX?region=…,name=gs://BUCKET". No
// bucket is asked yet.
func ParseBuckets(text string) (Buckets, error) {
	b := Buckets{addresses: map[string]string{}}
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, address, ok := strings.Cut(entry, "=")
		u, err := url.Parse(address)
		switch {
		case !ok || !bucketName.MatchString(name):
			return b, fmt.Errorf("bucket %q: want name=URL; a name has only a-z, 0-9, _ and -", entry)
		case err != nil || u.Scheme != "s3" && u.Scheme != "gs" && u.Scheme != "file":
			return b, fmt.Errorf("bucket %q: write s3://BUCKET/PREFIX?region=…, gs://BUCKET/PREFIX or file:///DIR", name)
		case b.addresses[name] != "":
			return b, fmt.Errorf("bucket %q is named twice", name)
		}
		b.addresses[name] = address
	}
	return b, nil
}

// Has tells whether a reference, NAME:inside, is to one of the buckets.
func (b Buckets) Has(ref string) bool {
	name, _, ok := strings.Cut(ref, ":")
	return ok && b.addresses[name] != ""
}

// Bucket is an open one, below a prefix.
type Bucket struct {
	bucket *blob.Bucket
	name   string // as it was asked for
}

// Open opens the bucket of a reference at the prefix that it names.
func (b Buckets) Open(ctx context.Context, ref string) (*Bucket, error) {
	name, inside, _ := strings.Cut(ref, ":")
	u, err := url.Parse(b.addresses[name])
	if err != nil || b.addresses[name] == "" {
		return nil, fmt.Errorf("there is no bucket %q", name)
	}
	prefix := strings.Trim(inside, "/")
	var bucket *blob.Bucket
	if u.Scheme == "file" {
		bucket, err = fileblob.OpenBucket(filepath.Clean(u.Path), &fileblob.Options{Metadata: fileblob.MetadataDontWrite})
	} else {
		prefix = strings.Trim(strings.Trim(u.Path, "/")+"/"+prefix, "/")
		u.Path = ""
		bucket, err = openBucket(ctx, *u)
	}
	if err != nil {
		return nil, fmt.Errorf("open the bucket %s: %w", name, err)
	}
	if prefix != "" {
		bucket = blob.PrefixedBucket(bucket, prefix+"/")
	}
	return &Bucket{bucket, ref}, nil
}

// Close lets go of the bucket.
func (b *Bucket) Close() error { return b.bucket.Close() }

// Names lists the objects in the order of their names' bytes, a page at a time.
func (b *Bucket) Names(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		list := b.bucket.List(nil)
		for {
			object, err := list.Next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield("", fmt.Errorf("list %s: %w", b.name, err))
				return
			}
			if strings.HasSuffix(object.Key, "/") {
				continue // what some tools put where a directory would be
			}
			if !yield(object.Key, nil) {
				return
			}
		}
	}
}

// Read opens one object. The error is ErrMissing when there is none.
func (b *Bucket) Read(ctx context.Context, name string) (io.ReadSeekCloser, error) {
	r, err := b.bucket.NewReader(ctx, name, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, fmt.Errorf("%w %s", ErrMissing, b.name)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", name, b.name, err)
	}
	return r, nil
}
