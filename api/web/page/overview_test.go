package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"piecework/internal/work"
)

// The pages' policy allows neither styles nor scripts within them; a drawing
// must name its parts, and every id that something refers to must be there.
func TestOverviewKeepsThePolicyAndItsReferences(t *testing.T) {
	t.Parallel()
	for _, page := range []Page{storyOverview("1h"), storyOverview("7d"), Overview{Now: now},
		Processes{Processes: []Process{{Process: storyCrew()[0]}}, Now: now}} {
		var out bytes.Buffer
		if err := page.Render(&out); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		if found := regexp.MustCompile(`(?i)<(style|img|foreignObject|use|image|animate)\b|\s(style|on\w+|font-family)=`).FindString(text); found != "" {
			t.Errorf("%T has %s", page, found)
		}
		ids := map[string]bool{}
		for _, m := range regexp.MustCompile(`\bid="([^"]+)"`).FindAllStringSubmatch(text, -1) {
			if ids[m[1]] {
				t.Errorf("%T: id %s is there twice", page, m[1])
			}
			ids[m[1]] = true
		}
		for _, m := range regexp.MustCompile(`(?:aria-labelledby="|url\(#)([^")]+)`).FindAllStringSubmatch(text, -1) {
			for id := range strings.FieldsSeq(m[1]) {
				if !ids[id] {
					t.Errorf("%T refers to %s, which is not there", page, id)
				}
			}
		}
		for _, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1) {
			d := xml.NewDecoder(strings.NewReader(svg))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%v in %s", err, svg)
				}
			}
			if !strings.Contains(svg, `aria-hidden="true"`) && !strings.Contains(svg, "<desc") {
				t.Errorf("a drawing has no words: %.200s", svg)
			}
		}
	}
}

// Every fill is told apart without colour by a pattern of its own.
func TestEveryFillHasAPattern(t *testing.T) {
	t.Parallel()
	page, err := pages.ReadFile("overview.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, fill := range []string{fillGood, fillBad, fillOther, fillBusy, "free"} {
		if !strings.Contains(string(page), fmt.Sprintf(`<pattern id="fill-%s"`, fill)) {
			t.Errorf("no pattern for %s", fill)
		}
	}
}

func TestColumnsStayInTheirFrame(t *testing.T) {
	t.Parallel()
	var c Columns
	c.draw([]stack{{}, {parts: []piece{{fillGood, 1e6}, {fillBad, 1}}, mark: 1e6 + 1}, {parts: []piece{{fillBad, 0.001}}}}, rate)
	if c.Top != "2,000,000" || len(c.Columns[0].Parts) != 0 || c.Columns[0].Mark != nil {
		t.Errorf("%+v", c)
	}
	if p := c.Columns[1].Parts; p[0].Y != "50%" || p[1].Y != "49.2%" || p[1].H != "0.8%" || c.Columns[1].X != "33.33%" {
		t.Errorf("%+v", c.Columns[1])
	}
	if parts := bar(10, piece{fillGood, 5}, piece{fillBad, 0}, piece{fillOther, 50}); len(parts) != 2 || parts[1].X != "50%" ||
		parts[1].W != "50%" {
		t.Errorf("%+v", parts)
	}
}

func TestFiguresInWords(t *testing.T) {
	t.Parallel()
	for s, want := range map[work.Seconds]string{0: "0 ms", 0.0042: "4.2 ms", 0.25: "250 ms", 1: "1 s", 9.96: "10 s", 75: "75 s",
		600: "10 min", 7200: "2 h", 86400 * 3: "3 d"} {
		if got := span(s); got != want {
			t.Errorf("%v: %s, want %s", s, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.0123: "0.01", 0.5: "0.5", 2: "2", 9.99: "10", 1234.4: "1,234"} {
		if got := rate(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := number(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for v, want := range map[float64]float64{0: 1, 0.3: 0.3, 1: 1, 2.4: 3, 4.1: 6, 7: 8, 8.5: 10, 1500: 2000} {
		if got := roundUp(v); got < want*0.999 || got > want*1.001 {
			t.Errorf("%v: %v, want %v", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0 %", 0.4: "0.4 %", 50: "50 %", 99.6: "99.6 %", 100: "100 %"} {
		if got := share(v, 100); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}
