package live

import (
	"fmt"
	"strconv"
	"strings"
)

// unitCursor is a place in the story of a unit, and the id of the event that
// leads there. Attempt and Rev are counted; of the others it matters only
// whether they are still the same.
type unitCursor struct {
	Unit    int64 // store.LiveUnit.Changed of the unit that was sent; 0: it was not
	Attempt int   // the run whose events are being sent; 0: none yet
	Run     int64 // store.LiveRun.Changed of that run as it was sent
	Rev     int   // of its transcript
	Ended   bool  // the end was sent
}

func (c unitCursor) String() string {
	id := fmt.Sprintf("%d.%d.%d.%d", c.Unit, c.Attempt, c.Run, c.Rev)
	if c.Ended {
		id += ".end"
	}
	return id
}

func parseUnitCursor(text string) (c unitCursor, ok bool) {
	text, c.Ended = strings.CutSuffix(text, ".end")
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return unitCursor{}, false
	}
	var numbers [4]int64
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 63)
		if err != nil || i%2 == 1 && n > 1<<31-1 {
			return unitCursor{}, false
		}
		numbers[i] = int64(n)
	}
	c.Unit, c.Attempt, c.Run, c.Rev = numbers[0], int(numbers[1]), numbers[2], int(numbers[3])
	return c, true
}
