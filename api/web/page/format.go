package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"piecework/internal/work"
)

// ago says how long before now t was, in the largest fitting unit.
func ago(now, t time.Time) string {
	switch d := now.Sub(t); {
	case d < 0:
		return work.When(t)
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	default:
		return t.UTC().Format("2 Jan 2006")
	}
}

// took is how long something lasted, or has lasted until now.
func took(now, from time.Time, to *time.Time) string {
	end := now
	if to != nil {
		end = *to
	}
	return lasted(end.Sub(from))
}

func lasted(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < time.Second:
		return strconv.FormatInt(max(d.Milliseconds(), 1), 10) + " ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}

func iso(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// usd is a cost that stands alone.
func usd(c work.Cost) string {
	if c.CostUnknown() {
		return "cost unknown"
	}
	return c.CostText()
}

// spent is a cost in a sentence: they have cost …
func spent(c work.Cost) string {
	if c.CostUnknown() {
		return "an unknown amount"
	}
	return c.CostText()
}

// count is "1 turn", "2 turns".
func count(n any, noun string) string {
	text := number(n)
	if text != "1" {
		noun += "s"
	}
	return text + " " + noun
}

// number groups digits: 12,345.
func number(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// size is a number of bytes.
func size(n any) string {
	bytes, _ := strconv.ParseFloat(fmt.Sprint(n), 64) // templates give integers
	switch {
	case bytes < 1000:
		return count(n, "byte")
	case bytes < 1e6:
		return fmt.Sprintf("%.1f kB", bytes/1e3)
	case bytes < 1e9:
		return fmt.Sprintf("%.1f MB", bytes/1e6)
	}
	return fmt.Sprintf("%.1f GB", bytes/1e9)
}

// words is how a person writes a name such as timed_out.
func words(name any) string { return strings.ReplaceAll(fmt.Sprint(name), "_", " ") }

// maxShownText is how much of one text a page shows, in bytes. The API has all.
const maxShownText = 1 << 20

// pretty lays JSON out, unless its indents would make it too long: they grow
// with the depth of each line.
func pretty(raw json.RawMessage) string {
	var out bytes.Buffer
	if indented(raw) > maxShownText || json.Indent(&out, raw, "", "  ") != nil {
		return string(raw)
	}
	return out.String()
}

// indented is about how long JSON becomes when it is laid out, and maxShownText
// at least when it becomes longer than that.
func indented(raw []byte) int {
	size, depth, quoted := 0, 0, false
	for i := 0; i < len(raw) && size <= maxShownText; i++ {
		size++
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{', c == '[':
			depth++
			size += 1 + 2*depth
		case c == '}', c == ']':
			depth = max(depth-1, 0)
			size += 1 + 2*depth
		case c == ',':
			size += 1 + 2*depth
		}
	}
	return size
}

// line is text in one line, cut.
func line(text string) string {
	text = strings.Join(strings.Fields(text[:min(len(text), 1000)]), " ")
	cut, shortened := work.Cut(work.Clean(text), 160)
	if shortened {
		cut += "…"
	}
	return cut
}

// show makes visible what would deceive a reader: characters that turn text
// around or hide it, and control characters. What is too long for a page is cut.
// The template escapes the rest.
func show(v any) string {
	text, ok := v.(string)
	if p, isPointer := v.(*string); isPointer && p != nil {
		text, ok = *p, true
	}
	if !ok {
		text = fmt.Sprint(v)
	}
	if cut, shortened := work.Cut(text, maxShownText); shortened {
		text = cut + fmt.Sprintf("\n… [%s of %s shown; the API has all]", size(len(cut)), size(len(text)))
	}
	if !strings.ContainsFunc(text, deceives) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if deceives(r) {
			fmt.Fprintf(&out, "‹%U›", r)
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// deceives leaves alone what scripts need: the joiners of Persian, of Indian
// languages and of emoji.
func deceives(r rune) bool {
	switch {
	case r == '\n', r == '\r', r == '\t':
		return false
	case r == 0xad, r == 0x200b, r == 0x200e, r == 0x200f, r == 0xfeff, // hides, or turns around
		r >= 0x202a && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r >= 0xe0000 && r <= 0xe007f:
		return true
	}
	return unicode.IsControl(r)
}

// stateClass groups states by the colour they are shown in; the word is always
// there too.
func stateClass(state any) string {
	switch fmt.Sprint(state) {
	case "succeeded", "done", "delivered", "completed":
		return "good"
	case "failed", "timed_out", "lost", "fenced", "error", "dead", "completed_with_failures", "expired":
		return "bad"
	case "running", "waiting", "pending", "enumerating", "testing", "awaiting_approval", "in_progress", "finalizing", "cancelling":
		return "busy"
	}
	return "quiet"
}
