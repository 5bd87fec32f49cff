package backend

import (
	"bufio"
	"encoding/json"
	"errors"
)

// Decode reads JSON and forgives a field of another type than expected: the
// clients change between patch versions.
func Decode(data []byte, into any) error {
	err := json.Unmarshal(data, into)
	if errors.As(err, new(*json.UnmarshalTypeError)) {
		return nil
	}
	return err
}

// ReadLine returns the next line and its full size. It keeps no more than
// limit bytes of a line, but reads to its end.
func ReadLine(from *bufio.Reader, limit int64) (line []byte, size int64, err error) {
	for {
		part, err := from.ReadSlice('\n')
		if size += int64(len(part)); size <= limit {
			line = append(line, part...)
		} else {
			line = nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, size, err
		}
	}
}
