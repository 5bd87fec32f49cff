package source

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"unicode/utf8"
)

// rows reads a CSV file (RFC 4180) whose first row names the columns.
func (s Source) rows(file io.ReadSeeker, from Place) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		if err := s.eachRow(file, from, func(item Item) bool { return yield(item, nil) }); err != nil {
			yield(Item{}, err)
		}
	}
}

func (s Source) eachRow(file io.ReadSeeker, from Place, yield func(Item) bool) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	head, bom := skipBOM(file)
	table := s.table(head)
	columns, err := table.Read()
	switch {
	case err == io.EOF: // one that is wrapped is no end
		return broken("the file is empty; its first row names the columns")
	case err != nil:
		return rowError(err)
	}
	columns = append([]string(nil), columns...)
	if err := s.checkColumns(columns); err != nil {
		return err
	}
	base := bom
	if from.Offset > 0 {
		if _, err := file.Seek(from.Offset, io.SeekStart); err != nil {
			return err
		}
		table, base = s.table(file), from.Offset
	}
	table.FieldsPerRecord = -1
	lines := from.Line // above what the reader counts from 1
	for at := from; ; {
		row, err := table.Read()
		if err == io.EOF { //nolint:errorlint // one that is wrapped is no end
			return nil
		}
		if err != nil {
			return rowError(err)
		}
		line, _ := table.FieldPos(0)
		at = Place{Count: at.Count + 1, Line: lines + line + strings.Count(strings.Join(row, ""), "\n"), Offset: base + table.InputOffset()}
		item, err := s.row(columns, row, at)
		item.Line = lines + line
		if err != nil {
			return err
		}
		if !yield(item) {
			return nil
		}
	}
}

func (s Source) table(r io.Reader) *csv.Reader {
	table := csv.NewReader(r)
	if s.Delimiter != "" {
		table.Comma, _ = utf8.DecodeRuneInString(s.Delimiter)
	}
	table.ReuseRecord = true
	return table
}

// skipBOM reads past the mark that Excel puts in front of UTF-8.
func skipBOM(file io.Reader) (io.Reader, int64) {
	buffered := bufio.NewReader(file)
	if head, err := buffered.Peek(3); err == nil && bytes.Equal(head, []byte("\xef\xbb\xbf")) {
		_, _ = buffered.Discard(3) // it was peeked at
		return buffered, 3
	}
	return buffered, 0
}

func rowError(err error) error {
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		return broken("line %d: %v", parse.Line, parse.Err)
	}
	return err
}

func (s Source) checkColumns(columns []string) error {
	seen := map[string]bool{}
	for i, name := range columns {
		switch {
		case name == "":
			return broken("column %d has no name in the first row", i+1)
		case !utf8.ValidString(name):
			return broken("the first row is not UTF-8; save the file as UTF-8")
		case seen[name]:
			return broken("two columns are called %q", name)
		}
		seen[name] = true
	}
	if s.CustomID != "" && !seen[s.CustomID] {
		return broken("there is no column %q to take custom_id from", s.CustomID)
	}
	return nil
}

func (s Source) row(columns, row []string, at Place) (Item, error) {
	item := Item{CustomID: strconv.Itoa(at.Count), Next: at}
	if len(row) != len(columns) {
		item.Wrong = fmt.Sprintf("the row has %d fields; the first row names %d columns", len(row), len(columns))
		return item, nil
	}
	payload := make(map[string]string, len(columns))
	for i, name := range columns {
		if !utf8.ValidString(row[i]) {
			item.Wrong = fmt.Sprintf("the column %q is not UTF-8", name)
			return item, nil
		}
		payload[name] = row[i]
		if name == s.CustomID {
			item.CustomID = cmp.Or(row[i], item.CustomID)
		}
	}
	var err error
	item.Payload, err = json.Marshal(payload)
	return item, err
}
