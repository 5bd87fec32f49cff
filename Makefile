# The targets that people and machines use. `make help` lists them.

BIN     := bin/piecework
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

# Rooms in which goroutines meet; `make race` takes everything.
RACE_KEY := ./internal/... ./store/... ./jobs/... ./handlers/...

# `.ci/run` installs this version; elsewhere whatever is on PATH is used.
GOLANGCI_VERSION := v2.15.0

# The tests of the real agents' programs, which take minutes.
AGENT_TESTS := ^TestReal

# Without a home directory Go does not know where to keep its caches.
ifeq ($(strip $(HOME)),)
GO_CACHES         := $(or $(TMPDIR),/tmp)/piecework-go-$(shell id -u)
export GOCACHE    ?= $(GO_CACHES)/build
export GOPATH     ?= $(GO_CACHES)/path
export GOMODCACHE ?= $(GO_CACHES)/mod
endif

.DEFAULT_GOAL := help
.PHONY: help demo dev build release test test-agents race race-key lint golden bench bench-scale bench-short bench-memory bench-agent kills chaos faults chaos-many chaos-cancel chaos-short chaos-planted screenshots viewer-figures openai-batch check golangci-version

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## build, start everything on a temporary directory, run twelve documents, show the results
	@$(BIN) demo

dev: build ## build and start API, worker process and pages, with local Postgres and Redis
	@$(BIN) dev

build: ## build bin/piecework
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN) ./cmd/piecework

# How the tests are compiled. Vet is with `lint`. Without symbols for debuggers the
# test binaries link in two thirds of the time; what a panic prints is the same.
# The drivers of S3 and GCS are a third of the program, and cmd/piecework tests
# nothing of them; internal/blob has its own S3. The rest is compiled as `build`
# does, so that nothing is compiled twice.
TEST := CGO_ENABLED=0 go test -trimpath -tags nocloud -vet=off -ldflags '-s -w'

# What `make release` builds for.
PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64

release: ## build dist/: the program for each platform, packed, with checksums: VERSION PLATFORMS
	rm -rf dist && mkdir dist
	for p in $(PLATFORMS); do \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o dist/piecework ./cmd/piecework && \
		tar -C dist -czf dist/piecework-$(VERSION)-$${p%/*}-$${p#*/}.tar.gz piecework && rm dist/piecework || exit 1; \
	done
	cd dist && sha256sum *.tar.gz > SHA256SUMS

test: ## run the tests (needs Go and PostgreSQL binaries; under five minutes on two cores)
	$(TEST) -skip '$(AGENT_TESTS)' ./...

test-agents: ## run the tests that `test` leaves out: those of the real agents that are installed
	$(TEST) -timeout 20m -run '$(AGENT_TESTS)' $$(grep -rlE --include='*_test.go' 'fakecli\.Real\(' . | xargs -n1 dirname | sort -u)

race: ## run the tests of `test` under the race detector (needs a C compiler; slow)
	go test -race -timeout 20m -skip '$(AGENT_TESTS)' ./...

race-key: # the part of `race` that `check` runs
	go test -race -skip '$(AGENT_TESTS)' $(RACE_KEY)

lint: ## check layout, vet, go.mod, and golangci-lint where it is installed
	@files=$$(git ls-files -co --exclude-standard '*.go' | while read -r f; do test -f "$$f" && echo "$$f"; done | xargs -r gofmt -l); \
	if [ -n "$$files" ]; then echo "not gofmt-ed:"; echo "$$files"; exit 1; fi
	@large=$$(git ls-files -z | xargs -0 -r du -k | awk '$$1 > 1024 { print $$2 }'); \
	if [ -n "$$large" ]; then echo "larger than a source is, perhaps a binary:"; echo "$$large"; exit 1; fi
	go vet ./...
	cd bench && go vet ./...
	go mod tidy -diff
	@if command -v golangci-lint >/dev/null; then \
		golangci-lint run ./...; \
	else \
		echo "lint: golangci-lint is not installed, so its checks were SKIPPED; the version in use is $(GOLANGCI_VERSION)"; \
	fi

golden: ## write every golden file anew
	@packages=$$(grep -rlE --include='*_test.go' 'testkit\.Golden\(' . | xargs -r -n1 dirname | sort -u); \
	if [ -z "$$packages" ]; then echo "golden: no test compares with a golden file"; exit 0; fi; \
	echo go test $$packages -update; \
	go test $$packages -update

# What `make bench` measures: `make bench ROWS=accept,drain REPEAT=3`. AGAINST is
# another binary of Piecework, or a directory with its source.
ROWS    :=
REPEAT  := 5
AGAINST :=

bench: ## measure Piecework beside its peers, in 15 minutes at most, and write docs/performance.md: ROWS REPEAT AGAINST
	cd bench && go run ./measure -repeat $(REPEAT) -budget 13m $(if $(ROWS),-rows $(ROWS)) $(if $(AGAINST),-against $(abspath $(AGAINST))) \
		$(if $(ROWS)$(AGAINST),,-o ../docs/performance.md)

# How many units `make bench-scale` makes: a million take 4 GB of the disk.
LEDGER := 1000000

bench-scale: ## measure a ledger with a million units that are over: LEDGER
	cd bench && go run ./measure -rows scale -repeat 1 -units $(LEDGER)

bench-short: # has a ratio dropped by more than a third?
	cd bench && go run ./measure -short ratios.json

bench-memory: ## measure many runs, readers and webhooks at once, and long transcripts
	cd bench && go test -run "TestInFlight|TestReaders|TestTriggers|TestTranscripts" -count 1 -v .

bench-agent: ## measure what Piecework adds to the time of a command-line agent
	cd bench && go test -run "TestAgent$$" -count 1 -v .

kills: ## kill 1,000 runs of unruly agents, and the worker processes of 1,000 more, at random moments
	go test -count 1 -timeout 30m -run KilledAtRandomMoments -v ./internal/backend/conformance -kills 1000

# What `make chaos` does; the seed says what breaks, and when.
SEED     := 1
SEEDS    := 1 2 3 4 5
DURATION := 2m
UNITS    := 600
FAULTS   := 120
ONLY     :=

chaos: ## break processes, servers and the network for a while, then check what was promised: SEED DURATION UNITS FAULTS ONLY
	cd bench && go test ./chaos -run '^TestChaos$$' -count=1 -v -timeout 24h \
		-seed '$(SEED)' -duration $(DURATION) -units $(UNITS) -faults $(FAULTS) -only '$(ONLY)'

# What `make faults` plays: `make faults ONLY=redis-lost`. LENGTH and MANY shorten it.
LENGTH   := 0
MANY     := 0

faults: ## break one thing at a time and print what came of it: ONLY LENGTH MANY
	cd bench && go test ./chaos -run '^TestScenarios$$' -scenarios -count=1 -v -timeout 3h \
		-only '$(ONLY)' -length $(LENGTH) -many $(MANY)

chaos-many: ## the same for several seeds, with one table of all: SEEDS DURATION UNITS FAULTS
	$(MAKE) chaos SEED='$(SEEDS)'

chaos-cancel: ## measure how soon a cancel is heard at the default lease, with Redis and without
	cd bench && go test ./chaos -run '^TestCancel$$' -cancels -count=1 -v -timeout 1h -lease 30s -units 120 -duration 40s

# Bounded in work, not in time: a busy machine makes it slow and not red. With a
# longer lease than the others, since a worker process must be able to keep it.
chaos-short: # every kind of fault once in a minute or so, and the checker's own tests
	cd bench && go test ./chaos -count=1 -timeout 1h -lease 6s

chaos-planted: ## plant bugs in Piecework, and see that the checker of `make chaos` finds each
	cd bench && go test ./chaos -run '^TestPlantedBugs' -planted -count=1 -v -timeout 3h -units 80 -faults 12 -duration 20s

# What `make openai-batch` sends.
LINES      := 50000
LINE_BYTES := 1000

openai-batch: ## send 50,000 lines through OpenAI's SDK, then again while API, worker process and Redis are killed: LINES LINE_BYTES
	go test ./cmd/piecework -run '^TestOpenAIBatchOfManyLines$$' -count=1 -v -timeout 3h -batch-lines $(LINES) -batch-line-bytes $(LINE_BYTES)

screenshots: ## write pictures of the pages to bin/screenshots: light, dark, phone
	go test ./api -count=1 -run TestScreenshots -screenshots $(CURDIR)/bin/screenshots

viewer-figures: ## measure the pages with 100,000 units in the ledger
	go test ./api -count=1 -run TestViewerFigures -v -figures

check: lint test test-agents race-key build ## the checks of a change; .ci/run has more: all races, the demo, make chaos-short

golangci-version: # for .ci/run
	@echo $(GOLANGCI_VERSION)
