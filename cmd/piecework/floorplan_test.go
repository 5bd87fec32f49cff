package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The floor plan: every package, and which rooms and examples it may import.
// Whatever lies under internal/ is open to everybody; the test kit to tests.
var floorPlan = []struct {
	pkg string
	may []string
}{
	{"cmd/piecework", []string{"api", "api/ops", "handlers", "jobs", "jobs/queue", "store", "migrations", "examples"}},
	{"api", []string{"api/body", "api/hooks", "api/live", "api/ops", "api/problem", "api/query", "api/view", "api/web", "api/web/page",
		"jobs", "jobs/queue", "store", "migrations"}},
	{"api/body", []string{"api/problem"}},
	{"api/hooks", []string{"api/body", "api/problem", "api/query", "api/view", "jobs", "store"}},
	{"api/live", []string{"api/problem", "api/query", "api/view", "jobs", "jobs/queue", "store"}},
	{"api/ops", []string{"api/problem", "api/query", "jobs", "jobs/queue", "store"}},
	{"api/problem", []string{"jobs", "store"}},
	{"api/query", []string{"api/problem", "store"}},
	{"api/view", []string{"store"}},
	{"api/web", []string{"api/ops", "api/problem", "api/query", "api/view", "api/web/page", "jobs", "jobs/queue", "store"}},
	{"api/web/page", nil},
	{"handlers", []string{"handlers/upkeep", "jobs", "jobs/queue", "store", "migrations"}},
	{"handlers/upkeep", []string{"jobs", "jobs/queue", "store"}},
	{"jobs", []string{"jobs/queue", "store", "migrations"}},
	{"jobs/queue", []string{"store"}},
	{"store", []string{"store/pg", "migrations"}},
	{"store/pg", nil},
	{"migrations", nil},
	{"examples", nil},
	{"internal/work", nil},
	{"internal/transcript", nil},
	{"internal/backend", nil},
	{"internal/backend/cli", nil},
	{"internal/backend/cli/claude", nil},
	{"internal/backend/cli/codex", nil},
	{"internal/backend/cli/cursor", nil},
	{"internal/backend/cli/gemini", nil},
	{"internal/backend/cli/opencode", nil},
	{"internal/backend/model", nil},
	{"internal/backend/model/anthropic", nil},
	{"internal/backend/model/openai", nil},
	{"internal/backend/mock", nil},
	{"internal/blob", nil},
	{"internal/prompt", nil},
	{"internal/roots", nil},
	{"internal/strictjson", nil},
	{"internal/source", nil},
	{"internal/process", nil},
	{"internal/expr", nil},
	{"internal/accept", nil},
	{"internal/webhook", nil},
	{"internal/local", nil},
	{"internal/testkit", []string{"store", "migrations"}}, // it makes databases with the real schema
	{"internal/testkit/fakemodel", nil},
	{"internal/testkit/fakecli", nil},
	{"internal/testkit/backendtest", nil},
}

// The walls: a library is imported by exactly these packages, and besides by
// the tests of those named in tests.
var walls = []struct {
	library string
	allowed []string
	tests   []string
	reason  string
}{
	{"github.com/labstack/echo/v4", []string{"api", "api/body", "api/hooks", "api/live", "api/problem", "api/web"}, nil, "HTTP has one front door"},
	{"github.com/danielgtaylor/huma/v2", []string{"api", "api/hooks", "api/live", "api/query", "api/view", "internal/strictjson"}, nil, "the API's description is made where its routes are; the same schemas are what bodies are compared with"},
	{"github.com/hibiken/asynq", []string{"jobs/queue", "handlers"}, []string{"jobs"}, "one enqueues messages, the other takes them"},
	{"github.com/hibiken/asynqmon", []string{"api/web"}, nil, "the dashboard is a page"},
	{"github.com/jmoiron/sqlx", []string{"store", "store/pg"}, nil, "only the store changes a state"},
	{"github.com/lib/pq", []string{"store", "store/pg", "internal/testkit", "internal/local"}, nil,
		"only the store talks to Postgres; dev and the tests start one and ask whether it is up"},
	{"github.com/pressly/goose/v3", []string{"migrations"}, nil, "the schema has one history"},
	{"github.com/alicebob/miniredis/v2", []string{"internal/local"}, nil, "an embedded server is for dev"},
	{"github.com/fergusstrange/embedded-postgres", []string{"internal/local"}, nil, "a downloaded server is for dev"},
	{"gocloud.dev", []string{"internal/blob", "cmd/piecework"}, nil, "file stores of every kind look alike outside; their drivers are wired in"},
	{"github.com/alecthomas/kong", []string{"cmd/piecework"}, nil, "flags are read where the house is wired"},
	{"github.com/schollz/progressbar/v3", []string{"cmd/piecework"}, nil, "only commands have a terminal"},
	{"github.com/anthropics/anthropic-sdk-go", []string{"internal/backend/model/anthropic"}, []string{"cmd/piecework"}, "one adapter speaks to Anthropic; what speaks like Anthropic is tested with it"},
	{"github.com/openai/openai-go/v3", []string{"internal/backend/model/openai"}, []string{"cmd/piecework"}, "one adapter speaks to OpenAI; what speaks like OpenAI is tested with it"},
	{"cel.dev/cel-go", []string{"internal/expr"}, nil, "one place bounds what an expression may cost"},
	{"github.com/modelcontextprotocol/go-sdk", []string{"cmd/piecework"}, nil, "agents are callers like the command line's"},
	{"github.com/chromedp/chromedp", nil, []string{"api"}, "the pages are tested in a browser; the binary drives none"},
	{"github.com/chromedp/cdproto", nil, []string{"api"}, "the pages are tested in a browser; the binary drives none"},
	{"github.com/standard-webhooks/standard-webhooks/libraries", nil, []string{"internal/webhook"}, "receivers verify by it what we send; we sign by ourselves"},
	{"testing", []string{"internal/testkit", "internal/testkit/fakemodel", "internal/testkit/fakecli", "internal/testkit/backendtest"}, nil,
		"the binary carries no test code"},
}

// Names that say nothing about what a package is for.
var emptyNames = []string{"util", "utils", "pkg", "common", "helper", "helpers", "misc", "shared", "base", "types", "models"}

const module = "piecework/"

// goPackage is what `go list` tells about one package.
type goPackage struct {
	ImportPath   string
	Name         string
	Dir          string
	GoFiles      []string
	CgoFiles     []string
	IgnoredFiles []string `json:"IgnoredGoFiles"`
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func (p goPackage) room() string { return strings.TrimPrefix(p.ImportPath, module) }

func (p goPackage) testImports() []string { return slices.Concat(p.TestImports, p.XTestImports) }

// files lists the package's own files for every platform, tests left out.
func (p goPackage) files() []string {
	var files []string
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredFiles) {
		if !strings.HasSuffix(name, "_test.go") {
			files = append(files, filepath.Join(p.Dir, name))
		}
	}
	return files
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	list := exec.Command("go", "list", "-e",
		"-json=ImportPath,Name,Dir,GoFiles,CgoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports",
		"./...")
	list.Dir, list.Stderr = "../..", os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("decode go list: %v", err)
		}
		if strings.HasPrefix(p.ImportPath, module) && len(p.files()) > 0 {
			packages = append(packages, p)
		}
	}
}

func TestRoomsImportDownwards(t *testing.T) {
	rules := map[string][]string{}
	for _, line := range floorPlan {
		rules[line.pkg] = line.may
	}
	for _, p := range listPackages(t) {
		for _, imported := range p.Imports {
			if complaint := direction(p.room(), imported, rules); complaint != "" {
				t.Error(complaint)
			}
		}
		for _, imported := range p.testImports() {
			if within(imported, module+"internal/testkit") || imported == module+"examples" {
				continue
			}
			if complaint := direction(p.room(), imported, rules); complaint != "" {
				t.Errorf("%s (in a test)", complaint)
			}
		}
	}
}

// Backends know the contract and the runner above them, and nothing of each
// other; the contract and the runners know no backend. cmd/piecework wires them.
func TestBackendsAreApart(t *testing.T) {
	adapters := 0
	for _, p := range listPackages(t) {
		if !within(p.room(), "internal/backend") {
			continue
		}
		if p.room() != "internal/backend" {
			adapters++
		}
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module)
			if ours && within(to, "internal/backend") && !within(p.room(), to) {
				t.Errorf("%s imports %s, which is not above it", p.room(), to)
			}
		}
		for _, imported := range p.testImports() {
			to, ours := strings.CutPrefix(imported, module)
			if ours && within(to, "internal/backend") && to != p.room() && !within(p.room(), to) {
				t.Errorf("a test of %s imports %s; tests of several backends lie in internal/backend/conformance", p.room(), to)
			}
		}
	}
	if adapters < 10 {
		t.Errorf("only %d packages of backends were found", adapters)
	}
}

// direction tells what is wrong with an import, or nothing.
func direction(from, imported string, rules map[string][]string) string {
	to, ours := strings.CutPrefix(imported, module)
	switch {
	case !ours || to == from:
		return ""
	case within(to, "internal/testkit") && !within(from, "internal/testkit"):
		return fmt.Sprintf("%s imports %s, which is for tests", from, to)
	case strings.HasPrefix(to, "internal/"), slices.Contains(rules[from], to):
		return ""
	case strings.HasPrefix(from, "internal/"):
		return fmt.Sprintf("%s imports the room %s; the tool cupboard knows no room", from, to)
	}
	return fmt.Sprintf("%s imports %s; the floor plan allows %v", from, to, rules[from])
}

func TestLibrariesStayBehindTheirWalls(t *testing.T) {
	packages := listPackages(t)
	for _, wall := range walls {
		for _, p := range packages {
			if importsLibrary(p.Imports, wall.library) && !slices.Contains(wall.allowed, p.room()) {
				t.Errorf("%s imports %s, which belongs to %v: %s", p.room(), wall.library, wall.allowed, wall.reason)
			}
			if wall.library != "testing" && importsLibrary(p.testImports(), wall.library) &&
				!slices.Contains(slices.Concat(wall.allowed, wall.tests), p.room()) {
				t.Errorf("a test of %s imports %s, which belongs to %v: %s", p.room(), wall.library, wall.allowed, wall.reason)
			}
		}
	}
}

func TestNoWallIsStale(t *testing.T) {
	packages := listPackages(t)
	byRoom := map[string]goPackage{}
	for _, p := range packages {
		byRoom[p.room()] = p
	}
	for _, wall := range walls {
		for _, room := range wall.allowed {
			if !importsLibrary(byRoom[room].Imports, wall.library) {
				t.Errorf("%s does not import %s: take it out of that wall's allowed packages", room, wall.library)
			}
		}
		for _, room := range wall.tests {
			if !importsLibrary(byRoom[room].testImports(), wall.library) {
				t.Errorf("no test of %s imports %s: take it out of that wall's tests", room, wall.library)
			}
		}
	}
}

func importsLibrary(imports []string, library string) bool {
	return slices.ContainsFunc(imports, func(imported string) bool { return within(imported, library) })
}

// within tells whether a path is dir or lies below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func TestOnlyTheCommandReadsEnvironmentAndFlags(t *testing.T) {
	used := false
	for _, p := range listPackages(t) {
		for _, name := range p.files() {
			found := outsideInputs(t, name)
			if p.room() == "cmd/piecework" {
				used = used || len(found) > 0
				continue
			}
			if len(found) > 0 && !within(p.room(), "internal/testkit") {
				t.Errorf("%s uses %v: read it in cmd/piecework and pass it in", rel(name), found)
			}
		}
	}
	if !used {
		t.Error("cmd/piecework reads no environment any more: the rule is stale")
	}
}

// outsideInputs lists where a file reads environment or flags.
func outsideInputs(t *testing.T, name string) []string {
	t.Helper()
	file := parse(t, name)
	var found []string
	for _, spec := range file.Imports {
		if spec.Path.Value == `"flag"` {
			found = append(found, "package flag")
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		from, ok := selector.X.(*ast.Ident)
		if ok && from.Name == "os" && slices.Contains([]string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"}, selector.Sel.Name) {
			found = append(found, "os."+selector.Sel.Name)
		}
		return true
	})
	return found
}

func TestPackagesIntroduceThemselves(t *testing.T) {
	for _, p := range listPackages(t) {
		if slices.Contains(emptyNames, path.Base(p.ImportPath)) || slices.Contains(emptyNames, p.Name) {
			t.Errorf("%s: the name does not say what it is for", p.room())
		}
		var docs []string
		for _, name := range p.files() {
			file := parse(t, name)
			if file.Doc.Text() != "" {
				docs = append(docs, filepath.Base(name))
			}
			for _, decl := range file.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
					t.Errorf("%s has an init function: wire it where it is used", rel(name))
				}
			}
		}
		if len(docs) != 1 {
			t.Errorf("%s needs exactly one package comment; it is in %v", p.room(), docs)
		}
	}
}

var platformFile = regexp.MustCompile(`_(linux|darwin|unix|windows|other)\.go$`)

// A package comment that lists files lists all of them, and no others. It may leave
// out its own file and variants for one platform.
func TestPackageCommentsListTheFiles(t *testing.T) {
	listed := regexp.MustCompile(`(?m)^\t([a-z0-9_]+\.go)\s`)
	for _, p := range listPackages(t) {
		var shown, built []string
		for _, name := range p.files() {
			file := filepath.Base(name)
			if !platformFile.MatchString(file) && parse(t, name).Doc == nil {
				built = append(built, file)
			}
			for _, m := range listed.FindAllStringSubmatch(parse(t, name).Doc.Text(), -1) {
				shown = append(shown, m[1])
			}
		}
		shown = slices.DeleteFunc(shown, func(file string) bool { // optional, but it must be there
			return !slices.Contains(built, file) && exists(p.room()+"/"+file)
		})
		if len(shown) > 0 {
			compareLists(t, "the package comment of "+p.room(), shown, built)
		}
	}
}

func TestFloorPlanIsTheHouse(t *testing.T) {
	var built, planned []string
	for _, p := range listPackages(t) {
		built = append(built, p.room())
	}
	for _, line := range floorPlan {
		planned = append(planned, line.pkg)
	}
	compareLists(t, "the floor plan in floorplan_test.go", planned, built)
}

// Both documents show the map as the first code block under a heading with
// the word "map": a path at the start of a line, then what it is. They may
// show folders and files besides packages.
func TestMapsShowTheHouse(t *testing.T) {
	var built []string
	for _, p := range listPackages(t) {
		built = append(built, p.room())
	}
	for _, name := range []string{"docs/design.md", "README.md"} {
		var shown []string
		for _, place := range mapOf(t, name) {
			if slices.Contains(built, place) || !exists(place) {
				shown = append(shown, place)
			}
		}
		compareLists(t, "the map in "+name, shown, built)
	}
}

func mapOf(t *testing.T, name string) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ims)^#+ [^\n]*\\bmap\\b[^\n]*\n.*?^```[a-z]*\n(.*?)^```").FindStringSubmatch(string(page))
	if block == nil {
		t.Fatalf("%s has no heading with the word \"map\" and a code block under it", name)
	}
	var places []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z][A-Za-z0-9_./-]*?)/?[ \t]+\S`).FindAllStringSubmatch(block[1], -1) {
		places = append(places, m[1])
	}
	return places
}

func exists(place string) bool {
	_, err := os.Stat(filepath.Join("../..", place))
	return err == nil
}

func compareLists(t *testing.T, what string, shown, built []string) {
	t.Helper()
	for _, room := range built {
		if !slices.Contains(shown, room) {
			t.Errorf("%s lacks %s", what, room)
		}
	}
	for _, room := range shown {
		if !slices.Contains(built, room) {
			t.Errorf("%s shows %s, which is not there", what, room)
		}
	}
}

func parse(t *testing.T, name string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func rel(name string) string {
	root, err := filepath.Abs("../..")
	if err != nil {
		return name
	}
	if short, err := filepath.Rel(root, name); err == nil {
		return short
	}
	return name
}
