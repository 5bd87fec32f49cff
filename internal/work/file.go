package work

import "encoding/json"

// Limits on the files of one unit.
const (
	MaxFiles     = 4
	MaxFileBytes = 10 << 20 // each
)

// Attachments are the files that a unit's payload names, in order: file_path,
// then file_paths. Fields of another shape belong to the prompt alone.
func Attachments(payload json.RawMessage) []string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(payload, &fields) != nil {
		return nil
	}
	var refs []string
	var one string
	if json.Unmarshal(fields["file_path"], &one) == nil && one != "" {
		refs = append(refs, one)
	}
	var many []string
	if json.Unmarshal(fields["file_paths"], &many) == nil {
		refs = append(refs, many...)
	}
	return refs
}
