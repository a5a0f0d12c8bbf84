# Everything needs only Python 3.11 or later, make and git; the virtual environment makes itself.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
MODULE ?=
DATA ?=
SURFACE ?=
SECONDS ?= 120
SEEDS ?= 1-2000
# Random runs of the matrix with two troubles at the same time.
TRIPLES ?= 500
DIST ?= dist
BUILD ?= build
# The extras in the image.
EXTRAS := $(shell sed -n 's/^ARG EXTRAS=//p' hub/Dockerfile)
IMAGE ?= docker:rsnotify
PLATFORM ?= linux/amd64
CHART := helm template rsnotify-hub rsnotify-hub
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Dependency groups need pip 25.1; Python 3.11 comes with an older one.
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --timeout 400
GROUP := $(PIP) "pip>=25.1" && $(PIP) --group
# Many tests wait for processes that they started, so two workers share a core.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(2 * (os.cpu_count() or 1))")

.PHONY: demo help gateway-demo test proofs check format fuzz bench fleet shared-fleet publishing slow recipes trials replay returning killing cluster-trial torture soak containers simulate matrix simulate-scale simulate-fleet mutants power-cuts sabotage screenshots dist installs sbom image-sbom manifests docs docs-serve clean

demo: $(VENV)/ready ## a Source, a hub and a Destination on this machine: make demo ARGS="--seconds 20"
	$(BIN)/rsnotify demo $(ARGS)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 18

test: $(VENV)/ready-dev ## all tests but the proofs and the slow ones: make test ARGS="-k hub"
	$(PYTEST) -m "not proof and not slow" $(ARGS)

proofs: $(VENV)/ready-dev ## whole systems under faults, the pages of the documentation, and samples of the commands below
	$(PYTEST) -m "proof and not slow" $(ARGS)

slow: $(VENV)/ready-dev ## the slow tests, and the longest others with ten times as many examples
	$(BIN)/pytest -n auto --dist worksteal -m slow $(ARGS) || test $$? = 5 # none is selected
	RSNOTIFY_EXAMPLES=10 $(BIN)/pytest -n auto --dist worksteal tests/core/test_selection.py \
	  tests/core/test_follower_properties.py tests/harnesses/test_matrix.py \
	  tests/wild/test_damaged_folder.py $(ARGS) || test $$? = 5

recipes: $(VENV)/ready-dev ## try the recipes with the systems that are installed: make recipes ARGS="-k wordpress"
	$(BIN)/pytest -m "slow or not slow" -rs tests/recipes $(ARGS)

trials: $(VENV)/ready-dev ## with all software of others that is installed, which restarts or is killed: make trials ARGS="-k haproxy"
	$(BIN)/pytest -p no:xdist -m "slow or not slow" -rs tests/trials tests/recipes $(ARGS)

fuzz: $(VENV)/ready-fuzz ## look for input that no surface expects, guided by coverage: make fuzz SURFACE=form SECONDS=120
	$(BIN)/python -m tests.harnesses.fuzzing.fuzz --surface "$(SURFACE)" --seconds $(SECONDS)

check: $(VENV)/ready-dev ## lint, and types, also those of the programs in the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.snippets $(BUILD)/snippets

format: $(VENV)/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/ready-dev ## how fast it is, beside what it is made on
	$(BIN)/python benchmarks/run.py $(ARGS)

gateway-demo: $(VENV)/ready-dev ## an OAI-PMH repository whose changes arrive in a browser: make gateway-demo ARGS="--port 8090"
	$(BIN)/python -m tests.gateway.demo $(ARGS)

fleet: $(VENV)/ready-dev ## what following hundreds of Sources in one process costs: make fleet ARGS=500
	$(BIN)/python benchmarks/fleet.py $(ARGS)

shared-fleet: $(VENV)/ready-dev ## kill processes that share a thousand Sources: make shared-fleet ARGS="1000 3"
	PYTHONPATH=. $(BIN)/python benchmarks/shared_fleet.py $(ARGS)

simulate-fleet: $(VENV)/ready-dev ## processes that share 10,000 Sources, simulated: make simulate-fleet ARGS="10000 40"
	PYTHONPATH=. $(BIN)/python benchmarks/simulate_fleet.py $(ARGS)

publishing: $(VENV)/ready-dev ## what publishing hundreds of sets in one process costs: make publishing ARGS=500
	$(BIN)/python benchmarks/publishing.py $(ARGS)

replay: $(VENV)/ready-dev ## replay a history while hub and Destination are killed: make replay DATA=history.jsonl.xz
	$(BIN)/python tests/end_to_end/replay.py $(if $(DATA),--data $(DATA)) $(ARGS)

returning: $(VENV)/ready-dev ## let a Destination come back at random points: make returning DATA=history.jsonl.xz
	$(BIN)/python tests/end_to_end/returning.py $(if $(DATA),--data $(DATA)) $(ARGS)

killing: $(VENV)/ready-dev ## kill -9 a hub under load: make killing ARGS="--rounds 300"
	$(BIN)/python tests/end_to_end/killing.py $(ARGS)

cluster-trial: $(VENV)/ready-dev ## three hubs and three NATS servers under faults, or upgraded: make cluster-trial ARGS="--seed 7 --minutes 3"
	$(BIN)/python -m tests.harnesses.cluster $(ARGS)

power-cuts: $(VENV)/ready-dev ## cut the power of a Source, a hub and a Destination: make power-cuts ARGS="--cuts 100000 --seed 7"
	$(BIN)/python -m tests.harnesses.power_cuts $(ARGS)

torture: $(VENV)/ready-dev ## all kinds of faults at random instants, and every claim checked: make torture ARGS="--rounds 1000 --seed 7"
	$(BIN)/python -m tests.harnesses.torture $(ARGS)

soak: $(VENV)/ready-dev ## a fault a minute, and memory and descriptors measured: make soak ARGS="--minutes 30"
	$(BIN)/python -m tests.harnesses.torture --minutes 30 $(ARGS)

simulate: $(VENV)/ready-dev ## a Source, hubs and Destinations under faults in virtual time, and the matrix: make simulate SEEDS=1-2000, SEEDS=relays:7 ARGS=-v
	$(BIN)/python -m tests.harnesses.simulation.run $(ARGS) $(SEEDS)
ifneq ($(origin SEEDS),command line)
	$(BIN)/python -m tests.harnesses.simulation.run $(ARGS) relays:1-500 gateways:1-500 cluster:1-200
	$(BIN)/python -m tests.harnesses.matrix.run --triples $(TRIPLES)
endif

matrix: $(VENV)/ready-dev ## every shape of Source with every trouble and every way to follow, in virtual time: make matrix ARGS="--way once"
	$(BIN)/python -m tests.harnesses.matrix.run --triples $(TRIPLES) $(ARGS)

simulate-scale: $(VENV)/ready-dev ## how shards move among 1,000 hub nodes, in virtual time: make simulate-scale ARGS="--nodes 20"
	$(BIN)/python -m benchmarks.simulate_scale $(ARGS)

mutants: $(VENV)/ready-dev ## which small bugs no test finds, in the core, the hub's log, deliveries and the journal: make mutants MODULE=sync/pull
	$(GROUP) mutants
	nice $(BIN)/python tests/harnesses/mutants.py $(MODULE) $(ARGS)

containers: $(VENV)/ready-dev sbom ## the image and docker-compose.yml in a container engine: needs docker with docker compose
	$(BIN)/pytest -p no:xdist tests/real_containers.py tests/real_cluster.py $(ARGS)

sabotage: $(VENV)/ready-dev ## plant bugs in copies of the project, and see which tests find them: make sabotage ARGS="--report build/sabotage.jsonl"
	$(BIN)/python -m tests.harnesses.sabotage $(ARGS)

screenshots: $(VENV)/ready-dev ## the pictures of the documentation whose pages have changed: make screenshots ARGS=demo
	$(BIN)/python -m tests.screenshots docs/images $(ARGS)

dist: $(VENV)/ready-release ## the sdist and the wheel, checked
	rm -rf $(DIST)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir $(DIST) .
	$(BIN)/twine check --strict $(DIST)/*
	$(BIN)/check-wheel-contents $(DIST)

installs: $(VENV)/ready-dev $(VENV)/ready-release ## every way to install what make dist builds, with pip, uv and pipx
	$(BIN)/pytest -p no:xdist tests/test_distribution.py $(ARGS)

sbom: dist ## the packages that the image installs, as CycloneDX in build/rsnotify.cdx.json, whose schema is checked
	rm -rf $(BUILD)/image
	$(BIN)/python -m venv --without-pip $(BUILD)/image
	$(BIN)/python -m pip --python $(BUILD)/image/bin/python install --quiet --disable-pip-version-check \
	  -c constraints.txt "rsnotify[$(EXTRAS)] @ file://$$(realpath $(DIST)/*.whl)"
	$(BIN)/cyclonedx-py environment --output-reproducible -o $(BUILD)/rsnotify.cdx.json $(BUILD)/image

image-sbom: $(VENV)/ready-release ## all packages of an image, also Debian's: make image-sbom IMAGE=docker:rsnotify: needs syft
	mkdir -p $(BUILD)
	syft scan $(IMAGE) --platform $(PLATFORM) --quiet --output cyclonedx-json@1.6=$(BUILD)/rsnotify-image.cdx.json
	$(BIN)/python -c "from cyclonedx.schema import SchemaVersion as S; from cyclonedx.validation.json import \
	JsonStrictValidator as V; raise SystemExit(V(S.V1_6).validate_str(open('$(BUILD)/rsnotify-image.cdx.json').read()))"

manifests: ## deploy/kubernetes/*.yaml, from the chart: needs helm
	cd deploy/kubernetes && $(CHART) >hub.yaml && $(CHART) --set cluster.enabled=true >cluster.yaml \
	  && $(CHART) --set cluster.enabled=true,networkPolicy.enabled=true -s templates/networkpolicy.yaml >networkpolicy.yaml \
	  && $(CHART) --set serviceMonitor.enabled=true -s templates/servicemonitor.yaml >servicemonitor.yaml

docs: $(VENV)/ready-docs ## the documentation site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

docs-serve: $(VENV)/ready-docs ## the same at http://127.0.0.1:8100/, built again when a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8100 $(ARGS)

clean:
	rm -rf $(VENV) build/site

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[uvloop]"
	touch $@

$(VENV)/ready-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(GROUP) dev -e .
	touch $@ $(VENV)/ready

$(VENV)/ready-release: $(VENV)/ready
	$(GROUP) release
	touch $@

# Only for `make docs`.
$(VENV)/ready-docs: $(VENV)/ready
	$(GROUP) docs
	touch $@

# Only for `make fuzz`, and only for some versions of Python.
$(VENV)/ready-fuzz: $(VENV)/ready-dev
	$(PIP) atheris
	touch $@
