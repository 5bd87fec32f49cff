package web

import (
	"bytes"
	"html/template"
	"regexp"
	"slices"

	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/util"

	"piecework/internal/work"
)

// maxMarkdown bounds what is laid out; longer text is shown as it is.
const maxMarkdown = 200 << 10

var toHTML, harmless = layout(), policy()

// layout reads GitHub's Markdown, but for HTML: tags are text like any other,
// for a reader wants to see what was written.
func layout() goldmark.Markdown {
	blocks := slices.DeleteFunc(parser.DefaultBlockParsers(), func(v util.PrioritizedValue) bool { return v.Value == parser.NewHTMLBlockParser() })
	inlines := slices.DeleteFunc(parser.DefaultInlineParsers(), func(v util.PrioritizedValue) bool { return v.Value == parser.NewRawHTMLParser() })
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
func markdown(v any) template.HTML {
	text := show(v)
	if len(text) > maxMarkdown {
		cut, _ := work.Cut(text, maxMarkdown)
		return template.HTML("<pre>" + template.HTMLEscapeString(cut) + "</pre>") //nolint:gosec // escaped right here
	}
	var out bytes.Buffer
	if err := toHTML.Convert([]byte(text), &out); err != nil {
		return template.HTML("<pre>" + template.HTMLEscapeString(text) + "</pre>") //nolint:gosec // escaped right here
	}
	return template.HTML(harmless.SanitizeBytes(out.Bytes())) //nolint:gosec // that is what it is for
}
