package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// measurement is one call of this program.
type measurement struct {
	*servers
	rows    []row
	only    *regexp.Regexp // subjects
	repeat  int
	budget  time.Duration // no repetition begins that would probably end later; 0: no limit
	scale   float64
	binary  string
	against string // another binary of the product; empty: none
	self    string // this program
	// selfAgainst is this program with the other source's packages; empty: none.
	selfAgainst string
	node        string
	templates   map[string]string // databases, by kind and binary
	samples     map[key][]taken
	runs        int
}

// key says whose samples these are.
type key struct {
	row, subject string
	against      bool // by the other binary
}

// taken is a sample of one repetition.
type taken struct {
	repetition int
	sample     sample
}

// all measures everything: repetition by repetition, in each row by row, in each
// subject by subject in another order, so that what else happens on the machine
// meets all alike. What fails is told, and left out.
func (m *measurement) all(ctx context.Context) (failed error) {
	m.templates, m.samples = map[string]string{}, map[key][]taken{}
	began, longest := time.Now(), time.Duration(0)
	for repetition := range m.repeat {
		this := time.Now()
		if m.budget > 0 && repetition > 0 && time.Since(began)+longest > m.budget {
			fmt.Fprintf(os.Stderr, "no time for repetition %d\n", repetition+1)
			m.repeat = repetition
			break
		}
		for _, r := range m.rows {
			if r.most > 0 && repetition >= r.most {
				continue
			}
			for _, t := range m.turns(r) {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				out, err := m.once(ctx, r, t)
				switch {
				case errors.Is(err, errNoNode):
					fmt.Fprintf(os.Stderr, "%s, %s: %v\n", r.name, t.subject.name, err)
					continue
				case err != nil:
					err = fmt.Errorf("%s, %s: %w", r.name, t.name(), err)
					fmt.Fprintln(os.Stderr, err)
					failed = errors.Join(failed, err)
					continue
				}
				k := key{r.name, t.subject.name, t.against}
				m.samples[k] = append(m.samples[k], taken{repetition, out})
				fmt.Fprintf(os.Stderr, "%d/%d %-10s %-32s %s\n", repetition+1, m.repeat, r.name, t.name(), out.short())
			}
		}
		longest = max(longest, time.Since(this))
	}
	return failed
}

// turn is one run that is to be made.
type turn struct {
	subject subject
	against bool
}

const suffixAgainst = " (against)"

func (t turn) name() string {
	if t.against {
		return t.subject.name + suffixAgainst
	}
	return t.subject.name
}

func (m *measurement) turns(r row) (all []turn) {
	for _, s := range r.subjects {
		if m.only != nil && !m.only.MatchString(s.name) {
			continue
		}
		all = append(all, turn{subject: s})
		if m.against != "" && s.kind == product || m.selfAgainst != "" && s.kind == productPackages {
			all = append(all, turn{s, true})
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func (m *measurement) once(ctx context.Context, r row, t turn) (out sample, err error) {
	binary, self := m.binary, m.self
	if t.against {
		binary = m.against
		if t.subject.kind == productPackages {
			self = m.selfAgainst
		}
	}
	template, err := m.template(ctx, t.subject.kind, t.against)
	if err != nil {
		return out, err
	}
	m.runs++
	dir := filepath.Join(m.dir, fmt.Sprintf("run-%d", m.runs))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return out, err
	}
	s, err := m.newStage(ctx, dir, template)
	if s != nil {
		defer func() {
			err = errors.Join(err, s.close())
			if err == nil {
				_ = os.RemoveAll(dir)
			}
		}()
	}
	if err != nil {
		return out, err
	}
	s.binary, s.self, s.pace = binary, self, m.pace(r.name, t.subject.name)
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.limit, 10*time.Minute))
	defer cancel()
	defer context.AfterFunc(ctx, s.interrupt)()
	return t.subject.run(ctx, s)
}

// pace is how fast the slower binary was in the repetition before, so that both
// get as many units.
func (m *measurement) pace(row, subject string) (slowest float64) {
	for _, against := range []bool{false, true} {
		if all := m.samples[key{row, subject, against}]; len(all) > 0 {
			if v := all[len(all)-1].sample.perSecond(); slowest == 0 || v < slowest {
				slowest = v
			}
		}
	}
	return slowest
}

func (m *measurement) template(ctx context.Context, k kind, against bool) (name string, err error) {
	if k == empty {
		return "", nil
	}
	id := fmt.Sprint(k, against && k != riverTables)
	if m.templates[id] != "" {
		return m.templates[id], nil
	}
	switch {
	case k == riverTables:
		name, err = m.riverTemplate(ctx)
	case against:
		name, err = m.productTemplate(ctx, m.against)
	case k == productPackages:
		name, err = m.packagesTemplate(ctx)
	default:
		name, err = m.productTemplate(ctx, m.binary)
	}
	if err == nil {
		m.templates[id] = name
	}
	return name, err
}

func (s sample) short() string {
	if s.Units == 0 || s.Seconds == 0 {
		return fmt.Sprint(s.Values)
	}
	var cpu []string
	for _, role := range roles {
		if us, ok := s.CPU[role]; ok && us >= 0.5 {
			cpu = append(cpu, fmt.Sprintf("%s %.0f", role, us))
		}
	}
	return fmt.Sprintf("%9.0f/s  µs: %s", s.perSecond(), strings.Join(cpu, ", "))
}
