# berth: dedicated GPUs for containers. `make help` lists the targets.

GO      ?= go
# Root tests run when this is root; what they need and lack is then a failure.
ROOT    := $(shell test "$$(id -u)" = 0 && echo 1)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
# The CLI library's own documentation generator costs every start half a millisecond.
TAGS    := urfave_cli_no_docs
STATIC  := CGO_ENABLED=0 $(GO) build -trimpath
OPS     ?= 1000000
# Packages that make test tests at a time: many tests wait more than they compute.
PARALLEL ?= 6
# They start first, so that none of them is left alone at the end.
LONGEST := ./test/faults ./test/tasks ./test/cli ./test/escape ./test/features ./launcher ./test/gpu ./test/images ./test/pull ./test/devicerules ./test/hook ./test/guard ./launcher/image ./test/broker ./test/everyday ./test/docs
# Root tests make and remove thousands of files and devices in /tmp. ext4 doesn't reuse an inode for five seconds after its
# removal, and searches all such inodes for each new file: 30% of the CPU time of test/escape. So root tests have a tmpfs as
# /tmp, in a mount namespace of their own. It takes memory, and it would hide a checkout below /tmp, which gets none.
TMPFS   := $(if $(ROOT),$(if $(filter /tmp/%,$(CURDIR)),,unshare --mount sh -c 'mount -t tmpfs -o mode=1777 tmpfs /tmp && exec "$$@"' sh))
# 1 runs the tests of make test on every pair of runtime and version of cgroups.
ALL     ?=
TASKS   ?= 1000
# Of make test-gangs, on each version of cgroups.
KILLS   ?= 500
# Of random kills; 0 draws one.
SEED    ?= 1
ROUNDS  ?= 10000
# Workers of make soak; fewer wait less, and make more operations a second.
PROCS   ?= 64
# The older version of make test-upgrade.
FROM    ?= d6ea6ce
# The Debian suite whose Slurm make test-slurm runs. With bookworm's the cluster doesn't start; forky's has no PMIx, and hasn't been tried.
SLURM   ?= trixie
FUZZTIME ?= 20s
# go-nvml wraps functions that NVIDIA has declared deprecated.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

.DEFAULT_GOAL := help
.PHONY: help build demo demo-plan test test-storms test-upgrade test-engines test-gangs model gpu-bundle lint fmt bench soak escape fuzz docs deps image package test-packages test-apptainer test-slurm clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/berth, and the programs beside it; needs Go and a C compiler
	@mkdir -p bin
	$(STATIC) -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/berth ./cmd/berth
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/berth-nvml ./cmd/berth-nvml
	$(STATIC) -ldflags '$(LDFLAGS)' -o bin/berth-runtime ./cmd/berth-runtime
	$(STATIC) -ldflags '$(LDFLAGS)' -o bin/berth-hook ./cmd/berth-hook
	$(STATIC) -ldflags '$(LDFLAGS)' -o bin/berth-monitor ./cmd/berth-monitor
	$(STATIC) -ldflags '$(LDFLAGS)' -o bin/berth-broker ./cmd/berth-broker
	$(STATIC) -ldflags '$(LDFLAGS)' -o bin/berth-containerd ./cmd/berth-containerd

demo: demo-plan deps build image ## twelve containers share eight GPUs (simulated ones, if there are no others)
	@test -e /proc/driver/nvidia/version || { \
		echo "3. NVIDIA's user-space driver from Debian's archive; without it stubs serve as well"; \
		$(GO) run ./test/simnode fetch >/dev/null 2>&1 || true; }
	@echo '4. the demo'
	@$(GO) run ./test/demo

demo-plan:
	@echo 'The first time this takes about three minutes, for: 1. the programs of berth, 2. a Debian image,'
	@echo "3. files for simulated GPUs, if there are no others, 4. the demo itself. It begins with 1."

test: deps build image ## all tests, as root the root ones too; with ALL=1 on every runtime and version of cgroups
	@$(TMPFS) env --default-signal BERTH_TEST_ALL=$(ALL) BERTH_TEST_ROOT=$(ROOT) BERTH_TEST_BIN=$(CURDIR)/bin $(GO) test -p $(PARALLEL) -count 1 -vet=off -timeout 40m -json $(LONGEST) ./... | $(GO) run ./test/audit

test-storms: deps build image ## the random kills of make test, more of them (TASKS=n, SEED=n); needs root
	@test "$(ROOT)" = 1 || { echo 'make test-storms needs root'; exit 1; }
	@env --default-signal BERTH_TEST_ROOT=1 BERTH_TEST_BIN=$(CURDIR)/bin $(GO) test -count 1 -timeout 60m -json ./test/tasks \
		-run '^(TestHundred|TestGangStorm)$$' -hundred.tasks $(TASKS) -hundred.seed $(SEED) -gang.storms 6 -gang.seed $(SEED) | $(GO) run ./test/audit

test-upgrade: build image ## tasks across an upgrade from the programs of the commit FROM; needs root
	@test "$(ROOT)" = 1 || { echo 'make test-upgrade needs root'; exit 1; }
	@rm -rf .cache/older && mkdir -p .cache/older && git archive $(FROM) | tar -x -C .cache/older
	@$(MAKE) --no-print-directory -C .cache/older build >/dev/null
	@env --default-signal BERTH_TEST_ROOT=1 BERTH_TEST_BIN=$(CURDIR)/bin BERTH_TEST_OLDER=$(CURDIR)/.cache/older/bin \
		$(GO) test -count 1 -json ./test/tasks -run '^TestUpgrade$$' | $(GO) run ./test/audit

test-engines: deps image ## the tests in docker, podman and containerd of Debian's packages; needs root
	@test "$(ROOT)" = 1 || { echo 'make test-engines needs root'; exit 1; }
	@test/engines/tree.sh forky >/dev/null && test/engines/tree.sh bookworm >/dev/null
	@for what in ./test/engines ./test/everyday '-run ^TestEngines$$ ./test/escape'; do \
		env --default-signal BERTH_TEST_ROOT=1 BERTH_TEST_ENGINES=1 $(GO) test -count 1 -timeout 60m -json $$what; done | $(GO) run ./test/audit

test-gangs: build image ## gangs of real PyTorch and Open MPI on simulated servers, and KILLS=500 kills; needs root
	@test "$(ROOT)" = 1 || { echo 'make test-gangs needs root'; exit 1; }
	@test/gangs/root.sh >/dev/null
	@env --default-signal BERTH_TEST_ROOT=1 BERTH_TEST_GANGS=1 $(GO) test -count 1 -timeout 60m -json ./test/gangs -gangs.kills $(KILLS) | $(GO) run ./test/audit

model: ## search a model of ledger, device guard and cgroups for unsafe states, with every kill; needs spin
	@test/model/run.sh

gpu-bundle: build ## a folder to carry to a machine with a GPU and no network; its run.sh is the test
	@test/gpu/bundle.sh

lint: deps ## formatting, vet and the linters of .golangci.yml
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo 'run make fmt'; exit 1; }
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod golangci-lint run

fmt: ## format the code
	$(GO) tool -modfile=tools/go.mod golangci-lint fmt

bench: build image ## berth against the plain runtimes; writes docs/reference/benchmarks.md
	@$(GO) run ./test/bench -write docs/reference/benchmarks.md

soak: build ## a million ledger operations, then a thousand tasks, with everything killed at random (OPS=n, PROCS=n, TASKS=n, SEED=n)
	@$(GO) run ./test/soak -ops $(OPS) -procs $(PROCS)
	@env --default-signal BERTH_TEST_ROOT=1 $(GO) test -count 1 -timeout 4h -v ./test/tasks -run '^TestHundred$$' -hundred.tasks $(TASKS) -hundred.seed $(SEED)

escape: ## attack berth as hostile images do, in every way, world, engine and entry point (ROUNDS=n of each race)
	@for target in cdi/ldcache:FuzzParse cdi/ldcache:FuzzReadLibrary gpu/request:FuzzParse gpu/match:FuzzChoose hook/bundle:FuzzPartialSpec; do \
		$(GO) test ./$${target%:*} -run '^$$' -fuzz "^$${target#*:}\$$" -fuzztime $(FUZZTIME) >/dev/null || exit 1; done
	@mkdir -p .cache && $(GO) test -c -o .cache/escape.test ./test/escape
	@cd test/escape && BERTH_TEST_ROOT=1 BERTH_TEST_ENGINES=1 ../../.cache/escape.test -test.timeout 2h -escape.everywhere -escape.rounds $(ROUNDS)

fuzz: ## fuzz each parser for a short while (FUZZTIME=20s)
	@test/fuzz.sh

docs: ## write the man page and completions from the code
	$(GO) test ./cmd/berth -run TestGenerated -count 1 -update

image: deps ## the Debian image of demo and tests, as an OCI image layout
	@test/image/make.sh

package: ## dist/*.deb and dist/*.rpm, for amd64 and arm64, the same bytes from the same commit
	@PACKAGES=1 test/deps.sh
	@packaging/build.sh dist

test-packages: deps ## install, upgrade, remove and purge the packages on servers with a systemd; needs root
	@test "$(ROOT)" = 1 || { echo 'make test-packages needs root'; exit 1; }
	@PACKAGES=1 test/deps.sh
	@test/engines/tree.sh forky >/dev/null && test/engines/tree.sh bookworm >/dev/null && test/engines/tree.sh users >/dev/null
	@env --default-signal BERTH_TEST_ROOT=1 BERTH_TEST_ENGINES=1 $(GO) test -count 1 -timeout 60m -json ./test/packages | $(GO) run ./test/audit

test-apptainer: build image ## what a user types with Apptainer, on a server with Debian's; needs root
	@test "$(ROOT)" = 1 || { echo 'make test-apptainer needs root'; exit 1; }
	@test/engines/tree.sh users >/dev/null
	@env --default-signal BERTH_TEST_ROOT=1 BERTH_TEST_ENGINES=1 BERTH_TEST_BIN=$(CURDIR)/bin $(GO) test -count 1 -timeout 30m -json ./test/apptainer | $(GO) run ./test/audit

test-slurm: deps build ## ranks and batch scripts in a real Slurm; with ALL=1 what takes minutes, too; needs root
	@test "$(ROOT)" = 1 || { echo 'make test-slurm needs root'; exit 1; }
	@test/engines/tree.sh slurm-$(SLURM) >/dev/null
	@env --default-signal BERTH_TEST_ROOT=1 BERTH_TEST_ENGINES=1 BERTH_TEST_BIN=$(CURDIR)/bin \
		$(GO) test -count 1 -timeout 20m -json $(if $(ALL),,-short) ./test/slurm -slurm.suite $(SLURM) | $(GO) run ./test/audit

deps: ## install what is missing of runc, crun, a C compiler and the image tools (root on Debian)
	@test/deps.sh

clean: ## remove what was built
	rm -rf bin dist .cache
