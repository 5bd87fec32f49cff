package page

import (
	"bytes"
	"errors"
	"html/template"
	"regexp"
	"slices"
	"sync"

	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"piecework/internal/work"
)

// What is laid out at most; other text is shown as it is.
const (
	maxMarkdown = 200 << 10 // bytes
	maxLaidOut  = 2 << 20   // bytes of HTML
	maxLevels   = 100       // elements in each other
	maxLines    = 10_000
	maxMarkers  = 30     // quotes and lists around a line
	maxCells    = 10_000 // of a table, those that its rows leave out among them
	// The effort of plainEnough: in all, for each byte, and for any text.
	maxEffort, effortPerByte, freeEffort = 50_000_000, 400, 200_000
)

// They are made when the first text is laid out, as templates are.
var toHTML, harmless = sync.OnceValue(layout), sync.OnceValue(policy)

// layout reads GitHub's Markdown, but for HTML: tags are text like any other,
// for a reader wants to see what was written.
func layout() goldmark.Markdown {
	blocks := slices.DeleteFunc(parser.DefaultBlockParsers(),
		func(v util.PrioritizedValue) bool { return v.Value == parser.NewHTMLBlockParser() })
	inlines := slices.DeleteFunc(parser.DefaultInlineParsers(),
		func(v util.PrioritizedValue) bool { return v.Value == parser.NewRawHTMLParser() })
	return goldmark.New(
		goldmark.WithParser(parser.NewParser(parser.WithBlockParsers(blocks...), parser.WithInlineParsers(inlines...),
			parser.WithParagraphTransformers(parser.DefaultParagraphTransformers()...))),
		goldmark.WithExtensions(extension.GFM),
		goldmark.WithRendererOptions(html.WithHardWraps()),
	)
}

// policy lets through what text needs and nothing that is fetched, runs, or
// looks like a part of the page. Links lead away only when they are followed.
func policy() *bluemonday.Policy {
	p := bluemonday.NewPolicy()
	p.AllowElements("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "strong", "em", "del", "code", "pre", "blockquote",
		"table", "thead", "tbody", "tr", "th", "td")
	p.AllowAttrs("start").Matching(regexp.MustCompile(`^\d{1,9}$`)).OnElements("ol")
	p.AllowAttrs("align").Matching(regexp.MustCompile(`^(left|right|center)$`)).OnElements("th", "td")
	p.AllowAttrs("href").OnElements("a")
	p.AllowURLSchemes("http", "https", "mailto")
	p.RequireParseableURLs(true)
	p.RequireNoFollowOnLinks(true)
	p.RequireNoReferrerOnLinks(true)
	p.AddTargetBlankToFullyQualifiedLinks(true)
	return p
}

// markdown lays text out. What a model wrote is never trusted: the one
// library takes HTML for text, and whatever comes out is cut down by the other.
// What would take long to lay out, or make a page that stops a browser, is shown
// as it was written.
func markdown(v any) template.HTML {
	source := show(v)
	if len(source) <= maxMarkdown && plainEnough(source) {
		if out, ok := asHTML([]byte(source)); ok {
			return template.HTML(harmless().SanitizeBytes(out)) //nolint:gosec // that is what it is for
		}
	}
	cut, _ := work.Cut(source, maxMarkdown)
	return template.HTML("<pre>" + template.HTMLEscapeString(cut) + "</pre>") //nolint:gosec // escaped right here
}

// asHTML is text as HTML, if that is neither deep nor long.
func asHTML(source []byte) ([]byte, bool) {
	tree := toHTML().Parser().Parse(text.NewReader(source))
	if tooDeep(tree) {
		return nil, false
	}
	out := bounded{left: maxLaidOut}
	err := toHTML().Renderer().Render(&out, source, tree)
	return out.Bytes(), err == nil
}

// bounded takes so many bytes and no more.
type bounded struct {
	bytes.Buffer
	left int
}

var errTooLong = errors.New("too long")

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errTooLong
	}
	return b.Buffer.Write(p)
}

func tooDeep(tree ast.Node) bool {
	depth := 0
	err := ast.Walk(tree, func(_ ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			depth--
			return ast.WalkContinue, nil
		}
		if depth++; depth > maxLevels {
			return ast.WalkStop, errTooLong
		}
		return ast.WalkContinue, nil
	})
	return err != nil
}
