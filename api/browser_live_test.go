package api

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"

	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

// numbers are the steps in sight, in the order in which they stand there.
const numbers = `[...document.querySelectorAll(".step")].map((s) => s.dataset.number).join()`

// follow opens the page of a unit that has just begun, on a server that looks
// for news by itself.
func follow(t *testing.T) (*front, *tab, *story) {
	t.Helper()
	return followOn(t, nowhere)
}

func followOn(t *testing.T, redis string) (*front, *tab, *story) {
	t.Helper()
	f := openFront(t, testkit.DB(t, migrate), redis, nil)
	f.watchFor(100 * time.Millisecond)
	w := newTab(t, f.url)
	s := f.story(f.submit(mock("")))
	w.open("/units/" + s.c.ID.String())
	w.until("it runs", `document.querySelector("#state").textContent === "running"`)
	return f, w, s
}

// tell writes a step to the ledger and to nobody else.
func (s *story) tell(text string) {
	s.f.t.Helper()
	s.say(text)
	if err := s.f.Store.Transcripts.Append(s.f.t.Context(), store.Progress{RunID: s.c.RunID, Steps: s.w.After(s.written, 1<<30),
		LiveStatus: text}); err != nil {
		s.f.t.Fatal(err)
	}
	s.written = s.w.Rev()
}

func TestBrowserFollowsARun(t *testing.T) {
	t.Parallel()
	f, w, s := follow(t)
	s.tell("the first")
	w.until("the first step is there", numbers+` === "1" && document.querySelector("#step-1").textContent.includes("the first")`)
	w.until("so is what it does", `document.querySelector(".now").textContent.includes("the first") && document.querySelector(".card .say").textContent.includes("the first")`)

	for i := 2; i <= 60; i++ {
		s.tell(strings.Repeat(fmt.Sprintf("line of step %d\n", i), 5))
	}
	w.until("the reader at the end goes along", `document.querySelector("#step-60")?.getBoundingClientRect().top < innerHeight`)
	eval[any](w, `document.querySelector("#step-5").scrollIntoView()`)
	place := `Math.round(document.querySelector("#step-5").getBoundingClientRect().top)`
	w.until("who reads something else", place+` < innerHeight / 2`)
	was := eval[int](w, place)
	s.tell("the last")
	w.until("the last step is there", `document.querySelector("#step-61")`)
	if is := eval[int](w, place); is < was-2 || is > was+2 {
		t.Errorf("what was read moved from %d to %d", was, is)
	}

	other := f.submit(`{"backend":"mock","prompt":"a later unit"}`)
	w.until("a new unit comes into the list", `document.querySelector(".card").id === "card-`+other.String()+`"`)
	s.end(work.RunSucceeded, work.Succeeded)
	w.until("the end is told", `document.querySelector("#state").textContent === "succeeded" && document.querySelector(".result").textContent.includes("done") &&
		document.querySelector("#card-`+s.c.ID.String()+` .badge").textContent === "succeeded"`)
	same(w, "steps", numbers+`.split(",").length`, 61)
}

// What a model is writing is there before it is a step, and is text.
func TestBrowserShowsWordsAsTheyCome(t *testing.T) {
	t.Parallel()
	f, w, s := followOn(t, testkit.StartRedis(t).URL)
	for words := `.draft")?.textContent === "so far <b>\ufffd</b>"`; !eval[bool](w, `document.querySelector("`+words); {
		f.Queue.Drafted(queue.Draft{Unit: s.c.ID, Attempt: 1, Type: transcript.Action, Text: "so far <b>\u202e</b>"})
	}
	s.tell("so far and further")
	w.until("the step has taken its place", numbers+` === "1" && !document.querySelector(".draft")`)
}

// The page of a run that says something changes all the time: a press that begins
// before a change and ends after it counts.
func TestBrowserTakesAPressWhileThePageChanges(t *testing.T) {
	t.Parallel()
	_, w, s := follow(t)
	s.tell("one")
	w.until("one", `document.querySelector(".now")?.textContent.includes("one") && `+numbers+` === "1"`) // with the first step the whole detail came anew
	mouse := func(kind input.DispatchMouseEventType) {
		t.Helper()
		w.until("the button is at rest", `(() => {
			const e = document.querySelector(".actions [data-ask]"), r = e.getBoundingClientRect(), rests = e.restsAt === r.x + " " + r.y;
			e.restsAt = r.x + " " + r.y;
			return rests;
		})()`)
		at := eval[[]float64](w, `(() => { const r = document.querySelector(".actions [data-ask]").getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()`)
		call(w, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: kind, X: at[0], Y: at[1], Button: input.MouseButtonLeft,
			ClickCount: 1})
	}
	mouse(input.DispatchMouseEventTypeMousePressed)
	for !eval[bool](w, `document.querySelector(".actions [data-ask]:active") !== null`) { // it has moved away from the mouse
		mouse(input.DispatchMouseEventTypeMouseReleased)
		mouse(input.DispatchMouseEventTypeMousePressed)
	}
	s.tell("two")
	w.until("two", `document.querySelector(".now").textContent.includes("two")`)
	mouse(input.DispatchMouseEventTypeMouseReleased)
	w.until("it asks", `document.querySelector("#ask").open`)
}

func TestBrowserIsRefreshedInMidRun(t *testing.T) {
	t.Parallel()
	_, w, s := follow(t)
	s.tell("one")
	w.until("one", numbers+` === "1"`)
	w.open("/units/" + s.c.ID.String())
	s.tell("two")
	w.until("no gap and no repeat", numbers+` === "1,2"`)
	w.open("/units/" + s.c.ID.String())
	same(w, "after the next", numbers, "1,2")
	s.tell("three")
	w.until("it goes on", numbers+` === "1,2,3"`)
}

func TestBrowserShowsACallWithItsAnswer(t *testing.T) {
	t.Parallel()
	_, w, s := follow(t)
	s.w.Add(transcript.Step{Type: transcript.Action, Content: []transcript.Content{{Type: transcript.ToolCall, ID: "a", Name: "Read",
		Args: `{"x":1}`}}})
	s.tell("meanwhile")
	w.until("the call runs", `document.querySelector("#step-1 .call.running")`)
	w.click("#step-1 summary")
	w.until("it is open", `document.querySelector("#step-1 .call[open]")`)
	s.w.Add(transcript.Step{Type: transcript.ToolResult, CallID: "a", Name: "Read", Text: "the answer"})
	s.tell("then")
	w.until("the answer stands in the call, which stays open", `document.querySelector("#step-1 .call.done[open]")?.textContent.includes("the answer")`)
	w.until("what came after it is there too", numbers+` === "1,2,4"`)
}

// serveAt serves a door at an address, until stop.
func (f *front) serveAt(address string) (at string, stop func()) {
	f.t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		f.t.Fatal(err)
	}
	server := &http.Server{Handler: f}
	go func() { _ = server.Serve(listener) }() // says only that it was stopped
	stop = func() {
		f.EndStreams()
		_ = server.Close()
	}
	f.t.Cleanup(stop)
	return listener.Addr().String(), stop
}

func TestBrowserOutlivesARestartOfTheAPI(t *testing.T) {
	t.Parallel()
	database := testkit.DB(t, migrate)
	first := openFront(t, database, nowhere, nil)
	first.watchFor(100 * time.Millisecond)
	address, stop := first.serveAt("127.0.0.1:0")
	w := newTab(t, "http://"+address)
	w.bear(`net::ERR_|Failed to load resource`)
	s := first.story(first.submit(mock("")))
	w.open("/units/" + s.c.ID.String())
	s.tell("before")
	w.until("a step is there", numbers+` === "1"`)
	stop()
	w.until("it says that it is cut off", `!document.querySelector("#link").hidden`)
	s.tell("meanwhile")
	s.tell("and more")
	second := openFront(t, database, nowhere, nil)
	second.watchFor(100 * time.Millisecond)
	second.serveAt(address)
	w.until("nothing is missing or there twice", numbers+` === "1,2,3" && document.querySelector("#link").hidden`)
	s.tell("after")
	w.until("it goes on", numbers+` === "1,2,3,4"`)
}

func TestBrowserOutlivesRedis(t *testing.T) {
	t.Parallel()
	redis := testkit.StartRedis(t)
	f := openFront(t, testkit.DB(t, migrate), redis.URL, nil)
	f.watchFor(200 * time.Millisecond)
	w := newTab(t, f.url)
	s := f.story(f.submit(mock("")))
	w.open("/units/" + s.c.ID.String())
	s.tell("with it")
	w.until("with Redis", numbers+` === "1"`)
	redis.Stop()
	s.tell("without it")
	w.until("without", numbers+` === "1,2"`)
	redis.Start()
	s.tell("with it again")
	w.until("and with it again", numbers+` === "1,2,3"`)
}

// A page that nobody sees keeps no connection, and catches up.
func TestBrowserCatchesUpWhenItIsShownAgain(t *testing.T) {
	t.Parallel()
	f, w, s := follow(t)
	s.tell("seen")
	w.until("a step is there", numbers+` === "1"`)
	hide := func(hidden bool) {
		eval[any](w, fmt.Sprintf(`(Object.defineProperty(document, "hidden", { value: %v, configurable: true }), document.dispatchEvent(new Event("visibilitychange")), 0)`, hidden))
	}
	hide(true)
	testkit.Eventually(t, "its stream is closed", func() bool { return f.metric("piecework_event_streams") == 0 })
	s.tell("unseen")
	s.tell("unseen too")
	hide(false)
	w.until("it catches up", numbers+` === "1,2,3"`)
	s.tell("seen again")
	w.until("it goes on", numbers+` === "1,2,3,4"`)
}
