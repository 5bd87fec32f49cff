package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// shortScale makes a repetition of shortRows a matter of some seconds.
const shortScale = 0.5

// tolerated is how much of a recorded ratio must be left.
const tolerated = 2.0 / 3

// shortRows are the rows whose ratios are compared, with the subjects that this
// takes.
func shortRows() []row {
	rows := []row{acceptRow(), storeRow(), bulkRow(), drainRow()}
	for i := range rows {
		var chosen []subject
		for _, s := range rows[i].subjects {
			if slices.Contains([]string{piecework, riverOne, riverFast, three, asynqEmpty}, s.name) {
				chosen = append(chosen, s)
			}
		}
		rows[i].subjects = chosen
	}
	return rows
}

// ratios are all of the rows that were measured, by row and name.
func (m *measurement) ratios() map[string]spread {
	all := map[string]spread{}
	for _, r := range m.rows {
		for _, c := range m.comparisons(r) {
			all[r.name+": "+c.what] = c.outcome
		}
	}
	return all
}

func (m *measurement) record(file string) error {
	medians := map[string]float64{}
	for name, s := range m.ratios() {
		medians[name], _ = strconv.ParseFloat(strconv.FormatFloat(s.Median, 'g', 3, 64), 64)
	}
	text, err := json.MarshalIndent(medians, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// compare fails when the best of the repetitions is worse than it may be: the
// others say more about the machine than about the product.
func (m *measurement) compare(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var recorded map[string]float64
	if err := json.Unmarshal(text, &recorded); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return dropped(recorded, m.ratios())
}

func dropped(recorded map[string]float64, now map[string]spread) (failed error) {
	for name, before := range recorded {
		s, ok := now[name]
		switch {
		case !ok:
			failed = errors.Join(failed, fmt.Errorf("%s: not measured", name))
		case s.Max < before*tolerated:
			failed = errors.Join(failed, fmt.Errorf("%s: %s, and was %s", name, s, number(before)))
		}
	}
	return failed
}
