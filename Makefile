# One way to do each thing. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TYPES := $(VENV)/types.txt
CLASSES := $(VENV)/spark-classes.jsa
# How many processes run tests. Three of them are with Spark most of the time, and wait more than they compute.
WORKERS ?= 4

.PHONY: help setup demo test test-slow check lint fix bench bench-peers bench-scale simulate campaign attacks interop fuzz soak upgrade damage alerts raft-scripts mutants mutants-table simulate-mutants simulate-plants plants-table prove-requirements docs site packaging release lock clean

help: ## list what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-19s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml
	@echo "setting up $(VENV) from requirements.lock (a few minutes the first time)" >&2
	$(PYTHON) -c 'import sys; sys.exit("Antiphon needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -c "from antiphon.records.arrow_encode import compile_kernels; compile_kernels()"
	@touch $(STAMP)

setup: $(STAMP) ## make .venv from the lock file, with every extra

demo: setup ## run the main job on a year of flights and prove the result
	$(BIN)/antiphon demo $(ARGS)

check: lint ## lint and types; changes nothing
	$(BIN)/mypy

lint: setup
	$(BIN)/ruff format --check --quiet src tests examples || { echo "formatting differs: make fix"; exit 1; }
	$(BIN)/ruff check --quiet src tests examples

# Meanwhile the other core compiles the tests, which each process of `make test` would do for itself.
$(CLASSES): $(STAMP)
	@echo "keeping Spark's classes in $@ for the drivers that tests start (half a minute, once)" >&2
	@$(BIN)/pytest --collect-only -qq > /dev/null & tests=$$!; \
	$(BIN)/python -m tests.spark.quick_java $@; classes=$$?; \
	wait $$tests; exit $$classes

# The tests start hundreds of Python processes: each would compile the sources anew where the environment forbids byte code.
test test-slow: export PYTHONDONTWRITEBYTECODE :=

# Types are checked while the tests begin: mypy needs one core for as long as the tests take to be collected.
test: lint $(CLASSES) ## lint, types and all tests but the slow ones
	@$(BIN)/mypy > $(TYPES) 2>&1 & types=$$!; \
	$(BIN)/pytest -n $(WORKERS) -m "not slow" $(ARGS); tests=$$?; \
	wait $$types; types=$$?; cat $(TYPES); test $$tests -eq 0 -a $$types -eq 0

test-slow: $(CLASSES) ## the slow tests: installations, drills, the demo, clusters and Spark under kills
	$(BIN)/pytest -n $(WORKERS) -m slow $(ARGS)

fix: setup ## format and mend what the linter can mend
	$(BIN)/ruff format src tests examples
	$(BIN)/ruff check --fix src tests examples

bench: setup ## measure this machine (docs/benchmarks.md keeps our figures)
	$(BIN)/antiphon bench $(ARGS)

bench-peers: setup ## the same work on Antiphon and on Kafka, etcd, NATS, Oxia, with ratios (an hour): make bench-peers ARGS="--rows 'put/*'"
	$(BIN)/python -m tests.peers.run $(ARGS)

bench-scale: setup ## what things cost as they grow: shards, connections, log, table, replicas (20 minutes, 35 GB of disk)
	$(BIN)/python -m tests.scale.run $(ARGS)

simulate: setup ## 2,000 seeds of whole simulated nodes (20 minutes or more): make simulate ARGS="--seeds 200"
	$(BIN)/antiphon simulate $(if $(ARGS),$(ARGS),--seeds 2000)

campaign: setup ## 5,000 fresh seeds of whole nodes, going on after a failure (45 minutes or more): make campaign ARGS="300000 5000"
	$(BIN)/python -m tests.simulation.campaign $(ARGS)

raft-scripts: setup ## all scripts of etcd's Raft on our replicas, against the table of docs/simulation.md
	$(BIN)/python -m tests.simulation.raft_scripts $(ARGS)

attacks: setup ## five minutes of clients that want to hurt nodes; prints what they cost the others
	ATTACK_S=60 $(BIN)/pytest -q -s -p no:cacheprovider -m slow tests/security/test_attacks.py tests/security/test_live_attacks.py

interop: setup ## other projects' own tests and Kafka's own tools against three nodes (most of an hour): make interop ARGS="kafka-python"
	$(BIN)/python -m tests.interop.run $(ARGS)

fuzz: setup ## half an hour of hostile inputs to every listener and file format: make fuzz FUZZ_S=600 ARGS="kafka http"
	$(BIN)/python -m tests.fuzz.run $(if $(FUZZ_S),--seconds $(FUZZ_S)) $(ARGS)

soak: setup ## an hour of mixed load on three nodes: does anything grow, is anything lost? make soak ARGS="600 --out DIR"
	$(BIN)/python -m tests.soak.run $(ARGS)

upgrade: setup ## upgrade three nodes of an earlier version one after the other, under load (4 minutes): make upgrade ARGS="--old COMMIT"
	$(BIN)/python -m tests.rolling.upgrade $(ARGS)

damage: setup ## damage each kind of file in each way, start the node, record what becomes of it in docs/damage.md (10 minutes or more)
	$(BIN)/python -m tests.node.damage_trials $(ARGS)

mutants: setup ## put in every known bug (mutant), one after the other, and count the seeds it takes to find it
	$(BIN)/antiphon simulate --catch $(ARGS)

# names of before
simulate-mutants: mutants
simulate-plants: mutants

mutants-table: setup ## the same, 1,000 seeds each at most, and write the table of docs/simulation.md from it
	$(BIN)/python -m tests.simulation.mutants_table $(ARGS)

plants-table: mutants-table

prove-requirements: setup ## show that the tests of the numbered requirements can fail: make prove-requirements ARGS="S0.29"
	$(BIN)/python -m tests.requirement_mutations.prove $(ARGS)

alerts: setup ## fire every alert rule with promtool (Debian: apt-get install prometheus)
	$(BIN)/pytest -n 0 -rs -p no:cacheprovider tests/monitoring $(ARGS)

docs: setup ## draw the diagrams and tables that are made from the code
	$(BIN)/python -m antiphon.tools.diagrams docs
	$(BIN)/python -m antiphon.tools.monitoring monitoring/grafana.json

screenshots: setup ## take the pictures of docs/dashboard.md anew, with Chromium (Debian: apt-get install chromium chromium-driver)
	DASHBOARD_SHOTS=docs/images $(BIN)/pytest -n 0 -rs -p no:cacheprovider -m slow tests/dashboard/test_in_a_browser.py $(ARGS)

site: setup ## the documentation as a site in site/, links checked: then python3 -m http.server -d site
	$(BIN)/python -m tests.website . build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

packaging: setup ## install the wheel, and each extra alone, on every Python that is here (4 minutes): make packaging ARGS="base spark"
	$(BIN)/python -m tests.packaging.run $(ARGS)

release: setup ## build dist/ from a clean tree: wheel, source, list of packages (SBOM), changes, checksums
	$(BIN)/python -m tests.release.run $(ARGS)

lock: setup ## resolve the newest versions into requirements.lock
	$(BIN)/uv pip compile --quiet pyproject.toml --all-extras --universal --upgrade --generate-hashes --python-version 3.11 --no-header -o requirements.lock

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
