package store

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Every column of the table is declared, and what new units give is what is asked of
// the array that they come in.
func TestColumnsOfUnits(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	var there, declared, asked []string
	l.must(l.db.SelectContext(t.Context(), &there, `SELECT column_name FROM information_schema.columns
		WHERE table_schema = current_schema() AND table_name = 'work_units' ORDER BY column_name COLLATE "C"`))
	for _, c := range columnsOfUnits {
		declared = append(declared, c.name)
		if c.kind != "" {
			asked = append(asked, c.name)
		}
	}
	slices.Sort(declared)
	if !slices.Equal(declared, there) {
		t.Errorf("columnsOfUnits has\n%v\nand the table\n%v", declared, there)
	}
	asked = append(asked, "delay", "uploads", "trigger", "delivery", "event")
	given := namesOf(reflect.TypeFor[unitIn]())
	slices.Sort(asked)
	slices.Sort(given)
	if !slices.Equal(given, asked) {
		t.Errorf("unitIn gives\n%v\nand the statement asks for\n%v", given, asked)
	}
}

// namesOf are the names of a struct's fields in JSON.
func namesOf(of reflect.Type) (names []string) {
	for f := range of.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		} else if f.Anonymous {
			names = append(names, namesOf(f.Type)...)
		}
	}
	return names
}
