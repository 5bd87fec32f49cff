package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

func payloadDirectory(payload json.RawMessage) string {
	if !work.MayName(payload, "working_directory") {
		return ""
	}
	directory, _ := payloadText(payload, "working_directory")
	return directory
}

// checkFileFields refuses files that are named in a shape that would be passed
// over: the caller would believe them attached.
func checkFileFields(payload json.RawMessage) error {
	if bytes.HasPrefix(payload, []byte("{")) && !work.MayName(payload, "file_path") {
		return nil
	}
	var fields map[string]json.RawMessage // a struct would take File_Path for file_path
	if err := json.Unmarshal(payload, &fields); err != nil {
		return work.Invalidf("#/payload", "must be an object")
	}
	var path *string
	if raw, ok := fields["file_path"]; ok && json.Unmarshal(raw, &path) != nil {
		return work.Invalidf("#/payload/file_path", "must be a text; name several files in file_paths")
	}
	var paths []string
	if raw, ok := fields["file_paths"]; ok && json.Unmarshal(raw, &paths) != nil {
		return work.Invalidf("#/payload/file_paths", "must be an array of texts")
	}
	return nil
}

// payloadText is a text of the payload. A field of another shape belongs to
// the prompt alone, and so does one of almost the same name.
func payloadText(payload json.RawMessage, name string) (text string, ok bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(payload, &fields) != nil {
		return "", false
	}
	ok = json.Unmarshal(fields[name], &text) == nil
	return text, ok
}

// checkFiles looks at every file and directory the unit names, so that a
// caller hears of a mistake now rather than from a failed run.
func (r *Rules) checkFiles(ctx context.Context, b *UnitBody, n *store.NewUnit) error {
	if n.WorkingDirectory != "" && n.CacheTTL > 0 {
		return work.Invalidf("#/cache", "a unit with a working_directory may change what is in it, and a result from the cache would not: leave out cache or working_directory")
	}
	if n.WorkingDirectory != "" {
		pointer := "#/working_directory"
		if b.WorkingDirectory == "" {
			pointer = "#/payload/working_directory"
		}
		if _, err := r.Roots.Dir(n.WorkingDirectory); err != nil {
			return work.Invalidf(pointer, "%v", err)
		}
	}
	if err := checkFileFields(n.Payload); err != nil {
		return err
	}
	refs := n.Attachments()
	if len(refs) > r.FilePolicy.MaxFiles {
		pointer := "#/payload/file_paths"
		if len(n.Files) > 0 {
			pointer = "#/files"
		}
		return work.Invalidf(pointer, "%d files; at most %d may be attached", len(refs), r.FilePolicy.MaxFiles)
	}
	uploads, err := r.uploads(ctx, n)
	if err != nil {
		return err
	}
	for i, ref := range refs {
		name, size, wrong := r.lookAt(ref, uploads)
		if wrong == "" {
			wrong = r.FilePolicy.Refuses(name, size)
		}
		if wrong != "" {
			return work.Invalidf(filePointer(n, i), "%s", wrong)
		}
	}
	return nil
}

// uploads are the uploaded files that a unit names, as far as there are such.
func (r *Rules) uploads(ctx context.Context, n *store.NewUnit) (map[uuid.UUID]work.File, error) {
	ids := n.Uploads()
	if len(ids) == 0 {
		return nil, nil
	}
	return r.Store.Files.ByID(ctx, n.Tenant, ids)
}

// lookAt finds a file that a unit names, or says why it cannot be had.
func (r *Rules) lookAt(ref string, uploads map[uuid.UUID]work.File) (name string, size int64, wrong string) {
	if id, ok := work.UploadedFile(ref); ok {
		f, ok := uploads[id]
		if !ok {
			return "", 0, fmt.Sprintf("there is no uploaded file %s; upload it with POST /files", id)
		}
		return f.Name, f.Size, ""
	}
	file, path, err := r.Roots.Open(ref)
	if err != nil {
		return "", 0, err.Error()
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", 0, "cannot be read"
	}
	return filepath.Base(path), info.Size(), ""
}

// filePointer is where a unit names its attachment i.
func filePointer(n *store.NewUnit, i int) string {
	if i < len(n.Files) {
		return fmt.Sprintf("#/files/%d", i)
	}
	i -= len(n.Files)
	if one, ok := payloadText(n.Payload, "file_path"); ok && one != "" {
		if i == 0 {
			return "#/payload/file_path"
		}
		i--
	}
	return fmt.Sprintf("#/payload/file_paths/%d", i)
}
