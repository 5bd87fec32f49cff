package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/process"
	"piecework/internal/roots"
	"piecework/internal/webhook"
	"piecework/internal/work"
)

// Base is what every server command needs. A flag outranks its variable, which
// outranks the default.
type Base struct {
	DatabaseURL       string `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"Postgres, which holds the state." secret:"true"`
	PrepareStatements bool   `name:"prepare-statements" env:"PIECEWORK_PREPARE_STATEMENTS" default:"true" negatable:"" help:"Prepare the statements that come all the time, once for each connection. Turn it off when a pooler gives each transaction another connection and keeps no prepared statements."`
	RedisURL          string `name:"redis-url" env:"REDIS_URL" placeholder:"URL" help:"Redis, which carries messages: redis://, rediss:// or unix://, redis-sentinel://HOST:PORT,…/DB?master=NAME, redis-cluster://HOST:PORT,…" secret:"true"`
	Data              string `env:"PIECEWORK_DATA" default:"${data}" placeholder:"DIR" help:"Directory for what units need on disk; the user's data directory when left out."`
	Roots             string `env:"PIECEWORK_ROOTS" placeholder:"NAME=DIR,…" help:"Directories that units may use; give API and worker processes the same."`
	Buckets           string `env:"PIECEWORK_BUCKETS" placeholder:"NAME=URL,…" help:"Buckets that batches may read objects of; give API and worker processes the same: s3://BUCKET/PREFIX?region=…, gs://BUCKET/PREFIX or file:///DIR."`
	Storage
	SecretsKey      string          `env:"PIECEWORK_SECRETS_KEY" placeholder:"KEY" help:"Encrypts triggers' secrets in the database; give all parts the same, of at least 24 characters. Stored as they are when left out." secret:"true"`
	WebhookAllow    string          `env:"PIECEWORK_WEBHOOK_ALLOW" placeholder:"CIDR,…" help:"Addresses outside the public internet that messages to webhook endpoints may go to, such as 10.1.0.0/16; dev allows this machine."`
	ProjectSettings string          `name:"project-settings" env:"PIECEWORK_PROJECT_SETTINGS" default:"ignore" enum:"never,ignore,read" help:"Whether agents read the instructions and settings that lie in the directory they work in, of units that do not say: ${enum} (${default}); never refuses units that ask for it."`
	MCPServers      string          `name:"mcp-servers" env:"PIECEWORK_MCP_SERVERS" placeholder:"FILE" help:"JSON with MCP servers that units may name: {\"NAME\": {\"command\", \"args\", \"env\"} or {\"url\", \"headers\"}}; give API and worker processes the same."`
	AcceptCommands  bool            `name:"accept-commands" env:"PIECEWORK_ACCEPT_COMMANDS" help:"Let units check their results by commands, which run as the worker process's user; give API and worker processes the same. dev lets them."`
	Known           *backend.Prices `kong:"-"` // prices, as the flags set them
	LogLevel        string          `env:"PIECEWORK_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" help:"Least level that is logged: ${enum} (${default})."`
}

// mcpServers reads the MCP servers that units may name.
func (b *Base) mcpServers() (map[string]backend.MCPServer, error) {
	if b.MCPServers == "" {
		return nil, nil
	}
	servers, err := backend.ReadMCPServers(b.MCPServers)
	if err != nil {
		return nil, usagef("--mcp-servers: %s: %w", b.MCPServers, err)
	}
	return servers, nil
}

// webhooks reads which addresses messages may go to.
func (b *Base) webhooks() (webhook.Guard, error) {
	allow, err := webhook.ParseAllow(b.WebhookAllow)
	if err != nil {
		return webhook.Guard{}, usagef("--webhook-allow: %w", err)
	}
	return webhook.Guard{Allow: allow}, nil
}

// Storage is where files are kept, and which.
type Storage struct {
	Files        string `env:"PIECEWORK_FILES" placeholder:"URL" help:"Where uploaded and output files are kept, the same for API and worker processes: file:///DIR, s3://BUCKET?region=… or gs://BUCKET; files in --data when left out."`
	MaxFiles     int    `env:"PIECEWORK_MAX_FILES" default:"4" placeholder:"N" help:"Most files of one unit (${default})."`
	MaxFileBytes int64  `env:"PIECEWORK_MAX_FILE_BYTES" default:"10485760" placeholder:"BYTES" help:"Largest file of a unit, upload or output file (${default})."`
	FileSuffixes string `env:"PIECEWORK_FILE_SUFFIXES" placeholder:".EXT,…" help:"How names of a unit's files may end, such as .pdf,.txt; any when left out."`
}

// open opens the file store and reads the policy.
func (s Storage) open(ctx context.Context, data string) (*blob.Store, work.FilePolicy, error) {
	policy := work.FilePolicy{MaxFiles: s.MaxFiles, MaxBytes: s.MaxFileBytes}
	if s.MaxFiles < 0 || s.MaxFileBytes < 1 {
		return nil, policy, usagef("--max-files must not be negative, --max-file-bytes must be at least 1")
	}
	for suffix := range strings.SplitSeq(s.FileSuffixes, ",") {
		suffix = strings.ToLower(strings.TrimSpace(suffix))
		if suffix != "" && (!strings.HasPrefix(suffix, ".") || strings.Count(suffix, ".") > 1) {
			return nil, policy, usagef("--file-suffixes: %q: write an ending as .pdf", suffix)
		}
		if suffix != "" {
			policy.Suffixes = append(policy.Suffixes, suffix)
		}
	}
	address := s.Files
	if address == "" {
		address = blob.Local(filepath.Join(data, "files"))
	}
	store, err := blob.Open(ctx, address)
	if err != nil {
		return nil, policy, usagef("--files: %w", err)
	}
	return store, policy, nil
}

// secrets are those of the environment that S3 is asked with.
func (Storage) secrets(getenv func(string) string) (values []string) {
	for _, name := range []string{"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
		if value := getenv(name); value != "" {
			values = append(values, value)
		}
	}
	return values
}

// Door is what a command that listens needs.
type Door struct {
	Listen    string `env:"PIECEWORK_LISTEN" default:"127.0.0.1:7070" placeholder:"HOST:PORT" help:"Address to serve (${default}); port 0 picks one."`
	NoAuth    bool   `name:"no-auth" env:"PIECEWORK_NO_AUTH" help:"Serve addresses other than loopback although no key protects them."`
	PublicURL string `name:"public-url" env:"PIECEWORK_PUBLIC_URL" placeholder:"URL" help:"Address under which others reach this API; messages to webhook endpoints name it."`
	HostNames string `name:"host-names" env:"PIECEWORK_HOST_NAMES" placeholder:"NAME,…" help:"Names in URLs under which this API is reached, beside that of --public-url and of this machine; requests to others are refused."`
	MaxBody   int64  `env:"PIECEWORK_MAX_BODY" default:"10485760" placeholder:"BYTES" help:"Largest JSON body (${default})."`
}

// Crew is what a command that runs units needs.
type Crew struct {
	Concurrency int           `env:"PIECEWORK_CONCURRENCY" default:"8" placeholder:"N" help:"Units at once per worker process (${default})."`
	Queues      string        `env:"PIECEWORK_QUEUES" default:"default=1" placeholder:"NAME=WEIGHT,…" help:"Queues to take units from (${default})."`
	Lease       time.Duration `env:"PIECEWORK_LEASE" default:"30s" help:"Silence after which others take a worker process's units (${default})."`
	Heartbeat   time.Duration `env:"PIECEWORK_HEARTBEAT" default:"5s" help:"Between two signs of life (${default})."`
	Probe       time.Duration `env:"PIECEWORK_PROBE" default:"30s" help:"Between two looks at backends that are missing or refuse every unit (${default}); ten times that for the others."`
	Pack        time.Duration `env:"PIECEWORK_PACK" default:"1m" help:"Between two rounds of the batch lane: units that wait are packed into a provider's batch, and batches that are there are asked for (${default})."`
	Grace       time.Duration `env:"PIECEWORK_GRACE" default:"${grace}" help:"For runs to end by themselves at shutdown (${default})."`
	Kept
	Agents
}

// gear is what a worker process works with.
type gear struct {
	queues   map[string]int
	backends []backend.Backend
	secrets  []string
	env      []string // of commands that check results
}

func (c Crew) gear(getenv func(string) string, supervisor process.Supervisor) (g gear, err error) {
	if g.queues, err = c.check(); err != nil {
		return g, err
	}
	g.env, _ = c.environment(getenv, nil) // its secrets are those of every agent
	g.backends, g.secrets, err = c.backends(getenv, supervisor)
	return g, err
}

// check finds what no single flag can tell.
func (c Crew) check() (map[string]int, error) {
	var problems []error
	add := func(problem string) { problems = append(problems, errors.New(problem)) }
	if c.Concurrency < 1 || c.Concurrency > 10000 {
		add("--concurrency: must lie between 1 and 10000")
	}
	if c.Lease < 3*time.Second {
		add("--lease: must be at least 3s")
	}
	if c.Heartbeat < 100*time.Millisecond || c.Heartbeat > c.Lease/3 {
		add("--heartbeat: must lie between 100ms and a third of --lease")
	}
	if c.Probe < 100*time.Millisecond {
		add("--probe: must be at least 100ms")
	}
	if c.Pack < 100*time.Millisecond {
		add("--pack: must be at least 100ms")
	}
	if c.Grace < 0 {
		add("--grace: must not be negative")
	}
	if c.KeepKeys > 0 && c.KeepKeys < leastKeepKeys {
		add("--keep-keys: must be at least 24h: who repeats a request must not make a second unit")
	}
	queues, err := parseQueues(c.Queues)
	if err != nil {
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, &exitError{exitUsage, err}
	}
	return queues, nil
}

func parseQueues(text string) (map[string]int, error) {
	queues := map[string]int{}
	for part := range strings.SplitSeq(text, ",") {
		name, weight, weighed := strings.Cut(strings.TrimSpace(part), "=")
		n := 1
		if weighed {
			var err error
			if n, err = strconv.Atoi(weight); err != nil || n < 1 || n > 100 {
				return nil, fmt.Errorf("--queues: %q: the weight must lie between 1 and 100", part)
			}
		}
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
			return nil, fmt.Errorf("--queues: %q: a name has lower-case letters, digits, _ and -", part)
		}
		queues[name] = n
	}
	return queues, nil
}

// prepare makes the data directory and reads the roots.
func (b *Base) prepare() (roots.Roots, error) {
	if b.Data == "" {
		return roots.Roots{}, usagef("--data: is empty: give a directory")
	}
	dir, err := filepath.Abs(b.Data)
	if err != nil {
		return roots.Roots{}, fmt.Errorf("--data: %w", err)
	}
	b.Data = dir
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return roots.Roots{}, usagef("--data: %w", err)
	}
	parsed, err := roots.Parse(b.Roots)
	if err != nil {
		return parsed, usagef("--roots: %w", err)
	}
	return parsed, nil
}

func (b *Base) needURLs() error {
	switch {
	case b.DatabaseURL == "":
		return usagef("DATABASE_URL is not set: give the Postgres that all parts share, such as postgres://piecework@db/piecework\nTry: piecework dev, which brings its own")
	case b.RedisURL == "":
		return usagef("REDIS_URL is not set: give the Redis that all parts share, such as redis://redis:6379/0, redis-sentinel://one:26379,two:26379/0?master=NAME or redis-cluster://one:6379,two:6379\nTry: piecework dev, which brings its own")
	}
	return nil
}

// sealer keeps secrets in the database.
func (b *Base) sealer() (webhook.Sealer, error) {
	sealer, err := webhook.NewSealer(b.SecretsKey)
	if err != nil {
		return sealer, usagef("--secrets-key: %w", err)
	}
	return sealer, nil
}

// secrets are values of the configuration that must never be stored.
func (b *Base) secrets() []string {
	values := append(passwords(b.DatabaseURL), passwords(b.RedisURL)...)
	if b.SecretsKey != "" {
		values = append(values, b.SecretsKey)
	}
	return values
}

// keyword finds a password in a keyword string for Postgres.
var keyword = regexp.MustCompile(`\bpassword\s*=\s*('(?:[^'\\]|\\.)*'|\S+)`)

// passwords are those in a URL or a keyword string.
func passwords(text string) []string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" {
		if found := keyword.FindStringSubmatch(text); found != nil {
			return []string{strings.Trim(found[1], "'")}
		}
		return nil
	}
	var values []string
	if password, ok := u.User.Password(); ok {
		values = append(values, password)
	}
	for name, given := range u.Query() {
		if isPassword(name) {
			values = append(values, given...)
		}
	}
	return values
}

// isPassword tells of a URL's parameter, such as password or sentinel_password.
func isPassword(parameter string) bool { return strings.HasSuffix(parameter, "password") }

func (b *Base) logger(app *App) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(b.LogLevel)) // kong has checked it
	return slog.New(slog.NewTextHandler(app.Stderr, &slog.HandlerOptions{Level: level}))
}

// listen opens the door. Without keys only this machine may come in.
func (d *Door) listen(ctx context.Context) (net.Listener, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", d.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// hosts are the names that requests may name in Host.
func (d *Door) hosts() (names []string) {
	if host, _, err := net.SplitHostPort(d.Listen); err == nil {
		names = append(names, host)
	}
	if u, err := url.Parse(d.PublicURL); err == nil {
		names = append(names, u.Hostname())
	}
	if own, err := os.Hostname(); err == nil {
		names = append(names, own)
	}
	for name := range strings.SplitSeq(d.HostNames, ",") {
		names = append(names, strings.TrimSpace(name))
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// check finds what is wrong with the address.
func (d *Door) check() error {
	if u, err := url.Parse(d.PublicURL); d.PublicURL != "" &&
		(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery+u.Fragment != "") {
		return usagef("--public-url: %q is no address such as https://piecework.example.com", d.PublicURL)
	}
	host, _, err := net.SplitHostPort(d.Listen)
	if err != nil {
		return usagef("--listen: %q: write HOST:PORT, such as 127.0.0.1:7070", d.Listen)
	}
	ip := net.ParseIP(host)
	if loopback := host == "localhost" || ip != nil && ip.IsLoopback(); !loopback && !d.NoAuth {
		return usagef("--listen: %s can be reached from other machines, and no key protects it: listen on 127.0.0.1, or say --no-auth if something in front asks who comes", d.Listen)
	}
	return nil
}

// defaultData is where a user's data belongs on this system.
func defaultData(getenv func(string) string) string {
	home := getenv("HOME")
	switch {
	case os.Geteuid() == 0 && runtime.GOOS != "darwin":
		return "/var/lib/piecework" // Postgres will not run as root, and cannot enter root's home
	case getenv("XDG_DATA_HOME") != "":
		return filepath.Join(getenv("XDG_DATA_HOME"), "piecework")
	case home == "":
		return filepath.Join(os.TempDir(), fmt.Sprintf("piecework-%d", os.Getuid()))
	case runtime.GOOS == "darwin":
		return filepath.Join(home, "Library", "Application Support", "piecework")
	}
	return filepath.Join(home, ".local", "share", "piecework")
}

// logConfig prints what is in force by the names of the variables, with secrets
// hidden; a nil part is not.
func logConfig(log *slog.Logger, parts ...any) {
	var attrs []any
	for _, part := range parts {
		v := reflect.Indirect(reflect.ValueOf(part))
		if !v.IsValid() {
			continue
		}
		for _, field := range reflect.VisibleFields(v.Type()) {
			if field.Anonymous {
				continue
			}
			value := fmt.Sprint(v.FieldByIndex(field.Index).Interface())
			if field.Tag.Get("secret") == "true" {
				value = hidden(value)
			}
			attrs = append(attrs, cmp.Or(field.Tag.Get("env"), field.Name), value)
		}
	}
	log.Info("configuration", attrs...)
}

func hidden(value string) string {
	if value == "" {
		return ""
	}
	u, err := url.Parse(value)
	if err != nil || u.Scheme == "" || strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") { // of a password with a /, a ? or a #
		return "(set)"
	}
	query := u.Query()
	for name := range query {
		if isPassword(name) {
			query.Set(name, "xxxxx")
		}
	}
	if u.RawQuery != "" {
		u.RawQuery = query.Encode()
	}
	return u.Redacted()
}
