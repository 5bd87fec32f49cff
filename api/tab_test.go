package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"piecework/internal/testkit"
)

// chromium is the one browser process of this package's tests.
var chromium struct {
	once sync.Once
	ctx  context.Context
	stop func()
	err  error
}

var errNoBrowser = errors.New("there is no chromium, chromium-browser or google-chrome on PATH")

func startChromium() {
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if program, chromium.err = exec.LookPath(name); chromium.err == nil {
			break
		}
	}
	if chromium.err != nil {
		chromium.err = errNoBrowser
		return
	}
	home, err := os.MkdirTemp("", "pw-chromium-") // it writes there whatever its profile's directory is
	if chromium.err = err; err != nil {
		return
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.WSURLReadTimeout(testkit.Patience),
		chromedp.Env("HOME="+home, "TMPDIR="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home))
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	quiet := func(string, ...any) {} // it tells of every event that a newer browser has
	ctx, cancel := chromedp.NewContext(allocator, chromedp.WithErrorf(quiet), chromedp.WithLogf(quiet))
	chromium.ctx, chromium.err = ctx, chromedp.Do(ctx)
	chromium.stop = func() {
		cancel()
		end()
		_ = os.RemoveAll(home)
	}
}

func stopChromium() {
	if chromium.stop != nil {
		chromium.stop()
	}
}

// tab is a page in a browser that knows nothing of other tests. Whatever goes
// wrong in the page fails the test: an error in the console, a breach of its
// policy, a dialog, a request to another host.
type tab struct {
	t    *testing.T
	ctx  context.Context
	url  string
	mu   sync.Mutex
	said []string
	fine []*regexp.Regexp
}

// newTab opens a tab; it is skipped where no browser is.
func newTab(t *testing.T, base string) *tab {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: -short, and a browser takes its time")
	}
	chromium.once.Do(startChromium)
	if errors.Is(chromium.err, errNoBrowser) {
		t.Skipf("SKIPPED: %v, so no page was looked at in a browser", chromium.err)
	}
	if chromium.err != nil {
		t.Fatalf("start the browser: %v", chromium.err)
	}
	w := &tab{t: t, url: base}
	ctx, cancel := chromedp.NewContext(chromium.ctx, chromedp.WithNewBrowserContext())
	w.ctx = ctx
	if err := chromedp.Listen(ctx, w.watch); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		w.report(t)
	})
	call(w, network.Enable, network.EnableParams{})
	call(w, log.Enable, cdp.Empty{})
	call(w, page.Enable, page.EnableParams{})
	w.size(1280, 800)
	return w
}

// lend gives the tab to a subtest, whose fault is what goes wrong in it.
func (w *tab) lend(t *testing.T) {
	owner := w.t
	w.t = t
	t.Cleanup(func() {
		w.report(t)
		w.t = owner
	})
}

func (w *tab) report(t *testing.T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, said := range w.said {
		t.Errorf("in the page: %s", said)
	}
	w.said = nil
}

func (w *tab) watch(event any) {
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			w.complain("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning ||
			e.Type == runtime.ConsoleAPICalledTypeAssert {
			args, _ := json.Marshal(e.Args)
			w.complain("console: %s", args)
		}
	case *runtime.EventExceptionThrown:
		details, _ := json.Marshal(e.ExceptionDetails)
		w.complain("exception: %s", details)
	case *page.EventJavascriptDialogOpening:
		w.complain("dialog: %s", e.Message)
		go func() {
			_, _ = chromedp.Call(w.ctx, page.HandleJavaScriptDialog,
				page.HandleJavaScriptDialogParams{Accept: true}) // the tab may be closing
		}()
	case *network.EventRequestWillBeSent:
		home, _ := url.Parse(w.url)
		if to, err := url.Parse(e.Request.URL); err != nil || to.Host != home.Host {
			w.complain("a request to another host: %s", e.Request.URL)
		}
	}
}

func (w *tab) complain(format string, args ...any) {
	said := fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, fine := range w.fine {
		if fine.MatchString(said) {
			return
		}
	}
	w.said = append(w.said, said)
}

// bear lets complaints of that kind pass from now on: a test that takes the
// server away wants them.
func (w *tab) bear(pattern string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fine = append(w.fine, regexp.MustCompile(pattern))
}

// do runs an action in the tab.
func do[T any](w *tab, action chromedp.Action[T]) T {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, testkit.Patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		w.t.Fatalf("in the browser: %v%s", err, w.sight())
	}
	return value
}

// call sends a command of the browser's protocol.
func call[P, R any](w *tab, command cdp.Command[P, R], params P) R {
	w.t.Helper()
	return do(w, func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, command, params) })
}

// size is that of the page in sight. A phone has a narrow one.
func (w *tab) size(width, height int64) {
	w.t.Helper()
	call(w, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 500,
	})
}

func (w *tab) scheme(name string) {
	w.t.Helper()
	call(w, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
}

// open goes to a path and waits until the script of the page has run.
func (w *tab) open(path string) {
	w.t.Helper()
	do(w, chromedp.Navigate(w.url+path))
}

// eval is the value of an expression in the page.
func eval[T any](w *tab, expression string) T {
	w.t.Helper()
	return do(w, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// until waits for an expression in the page to become true. Looking at it
// may fail: the page may just be going elsewhere.
func (w *tab) until(what, expression string) {
	w.t.Helper()
	deadline := time.Now().Add(testkit.Patience)
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithDeadline(w.ctx, deadline)
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		cancel()
		if is && err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("not within %s: %s (%v)%s", testkit.Patience, what, err, w.sight())
		}
		<-tick.C
	}
}

// sight is what a person would see now, for who wants to know why.
func (w *tab) sight() string {
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText.slice(0, 600)`)) // a page may be too busy to tell
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("\nat %.1500s\n%s", text, strings.Join(w.said, "\n"))
}

// click clicks on the first element of a selector as a mouse does, when the
// page has come to rest around it and nothing covers it.
func (w *tab) click(selector string) {
	w.t.Helper()
	middle := `(() => {
		const e = document.querySelector(` + quote(selector) + `);
		e.scrollIntoView({ block: "center" });
		const [box] = e.getClientRects(), at = box && [box.x + box.width / 2, box.y + box.height / 2];
		const rests = at && String(at) === e.restsAt && e.contains(document.elementFromPoint(...at));
		e.restsAt = String(at);
		return rests ? at : null;
	})()`
	var at []float64
	for at == nil {
		w.until(selector+" is in sight and at rest", middle)
		at = eval[[]float64](w, middle)
	}
	mouse := input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMousePressed, X: at[0], Y: at[1],
		Button: input.MouseButtonLeft, ClickCount: 1}
	call(w, input.DispatchMouseEvent, mouse)
	mouse.Type = input.DispatchMouseEventTypeMouseReleased
	call(w, input.DispatchMouseEvent, mouse)
}

// press sends keys to whatever has the focus. What the page keeps from its
// default does not become text, as chromedp's own way of typing would have it.
func (w *tab) press(keys string) {
	w.t.Helper()
	for _, key := range keys {
		down := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: string(key), Text: string(key)}
		switch key {
		case '\r':
			down.Key, down.Code, down.WindowsVirtualKeyCode = "Enter", "Enter", 13
		case '\x1b':
			down.Key, down.Code, down.WindowsVirtualKeyCode, down.Text = "Escape", "Escape", 27, ""
		case '\t':
			down.Key, down.Code, down.WindowsVirtualKeyCode, down.Text = "Tab", "Tab", 9, ""
		case '\b':
			down.Key, down.Code, down.WindowsVirtualKeyCode, down.Text = "Backspace", "Backspace", 8, ""
		}
		up := down
		up.Type, up.Text = input.DispatchKeyEventTypeKeyUp, ""
		call(w, input.DispatchKeyEvent, down)
		call(w, input.DispatchKeyEvent, up)
	}
}

// same fails the test unless an expression in the page has that value.
func same[T comparable](w *tab, what, expression string, want T) {
	w.t.Helper()
	if got := eval[T](w, expression); got != want {
		w.t.Errorf("%s: %v, not %v%s", what, got, want, w.sight())
	}
}

func quote(text string) string {
	quoted, _ := json.Marshal(text) // texts always can be
	return string(quoted)
}

// picture writes what is in sight to a PNG file.
func (w *tab) picture(file string) {
	w.t.Helper()
	png := do(w, chromedp.CaptureScreenshot())
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(file, png, 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// A tab that missed harm would make every other test here worthless.
func TestTabNoticesHarm(t *testing.T) {
	t.Parallel()
	const policy = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	for name, test := range map[string]struct{ policy, body, want string }{
		"nothing":      {policy, `<p>good</p>`, ""},
		"dialog":       {"", `<script>alert(1)</script>`, "dialog: 1"},
		"policy":       {policy, `<script>1</script>`, "Content Security Policy"},
		"image":        {"", `<img src="http://127.0.0.2:1/x">`, "another host"},
		"exception":    {"", `<script>nothing.is.here</script>`, "nothing is not defined"},
		"console":      {"", `<script>console.error("oh")</script>`, "oh"},
		"missing file": {"", `<img src="/none.png">`, "404"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/" {
				http.NotFound(out, r)
				return
			}
			if test.policy != "" {
				out.Header().Set("Content-Security-Policy", test.policy)
			}
			out.Header().Set("Content-Type", "text/html")
			fmt.Fprint(out, `<!doctype html><link rel="icon" href="data:,">`, test.body)
		}))
		w := newTab(t, server.URL)
		w.bear(`data:,`)
		w.open("/")
		if test.want != "" {
			heard := func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return strings.Contains(strings.Join(w.said, "\n"), test.want)
			}
			for deadline := time.Now().Add(testkit.Patience); !heard() && time.Now().Before(deadline); {
				eval[int](w, "1")
			}
			w.mu.Lock()
			if text := strings.Join(w.said, "\n"); !strings.Contains(text, test.want) {
				t.Errorf("%s: %q", name, text)
			}
			w.said = nil
			w.mu.Unlock()
			w.bear("")
		}
		server.CloseClientConnections()
		server.Close()
	}
}
