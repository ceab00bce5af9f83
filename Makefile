# Every verb sets up what it needs; `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
BIN := .venv/bin
T ?= tests
SEEDS ?= 1-100
HOURS ?= 0.02
SEED ?= 1
FROM ?= HEAD~1
MINUTES ?= 10
ONLY ?= *
SCENE ?= lively
SIM ?=
SCOPE ?=
LIMIT ?= 1000000
SHAPE ?= steady
LOAD ?=
NODES ?=
IMAGES ?=
KILLS ?= 50
FLIGHTS ?= 336776

.PHONY: help setup demo test test-one lint bench proto docs scenarios-update spark-matrix golden upgrade-test sim sim-seed sim-summary explore chaos load mutants monitoring-lint kube-binaries kube-images kube-up kube-down kube-bench kube-demo kube-test clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## virtual environment, packages, etcd, a Java for Spark; seconds when all is there
	@scripts/setup.sh

demo: setup ## 336,776 flights through a cluster whose processes are killed: each counted once
	@$(BIN)/python -m hapax_spark.demo

test: lint ## everything: lint, types, layering, generated code, then all tests
	@$(BIN)/python -m pytest -n 2 -rs tests

test-one: setup ## one test or folder: make test-one T=tests/unit/core
	@$(BIN)/python -m pytest $(T)

lint: setup ## ruff, mypy, import-linter, generated code and pages are current
	@$(BIN)/ruff check
	@$(BIN)/mypy services/hapax spark/hapax_spark operator/hapax_operator load/hapax_load scripts
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/generate_proto.py --check
	@$(BIN)/python scripts/generate_docs.py --check
	@$(BIN)/python scripts/images/requirements.py --check

bench: setup ## the figures of docs/benchmarks.md; also as JSON lines in build/bench.jsonl
	@PYTHONPATH=tests $(BIN)/python -m bench

proto: setup ## regenerate services/hapax/rpc/gen from proto/
	@$(BIN)/python scripts/generate_proto.py

docs: setup ## regenerate the pages that come from the source (docs/settings.md)
	@$(BIN)/python scripts/generate_docs.py
	@$(BIN)/python scripts/images/requirements.py

scenarios-update: setup ## rewrite the golden scenario scripts from what the code does now; review the diff
	@HAPAX_UPDATE_SCENARIOS=1 $(BIN)/python -m pytest tests/scenarios

spark-matrix: setup ## what becomes of checkpoints in a real Spark; renews docs/spark.md: make spark-matrix ONLY='streaming/*'
	@SPARK_MATRIX='$(ONLY)' $(BIN)/python -m pytest tests/integration/spark_matrix

golden: setup ## store today's formats as a new version beside the old ones: make golden VERSION=v2
	@PYTHONPATH=tests $(BIN)/python -m golden $(VERSION)

upgrade-test: setup ## roll a cluster from an earlier commit to this tree and back, under load: make upgrade-test FROM=HEAD~1
	@UPGRADE_FROM=$(FROM) $(BIN)/python -m pytest -s tests/upgrade

sim: setup ## simulate a cluster under faults: make sim SEEDS=1-100 HOURS=0.02 SCENE=lively (or light, plain, single)
	@PYTHONPATH=tests $(BIN)/python -m hapax_sim --seeds $(SEEDS) --hours $(HOURS) --scene $(SCENE) $(SIM) \
	    --results build/sim/results.jsonl

sim-seed: setup ## one simulated history with its trace: make sim-seed SEED=7
	@PYTHONPATH=tests $(BIN)/python -m hapax_sim --seed $(SEED) --hours $(HOURS) --scene $(SCENE) $(SIM) --trace

sim-summary: setup ## docs/simulation-results.md from what make sim has found
	@PYTHONPATH=tests $(BIN)/python -m hapax_sim.results build/sim/results.jsonl

explore: setup ## every interleaving of the real machines in small scopes: make explore SCOPE=owners LIMIT=10000000
	@PYTHONPATH=tests $(BIN)/python -m hapax_explore --limit $(LIMIT) $(addprefix --scope ,$(SCOPE))

mutants: setup ## put more than two hundred bugs into a copy of the code, one by one: each must be found; renews docs/mutants.md
	@PYTHONPATH=tests $(BIN)/python -m hapax_mutants --write

chaos: setup ## faults on real processes, judged by the checker: make chaos MINUTES=10 ONLY='kill@*'
	@PYTHONPATH=tests $(BIN)/python -m hapax_chaos --minutes $(MINUTES) --only '$(ONLY)'

load: setup ## locust's users on three brokers whose processes are killed, then the count: make load MINUTES=30 SHAPE=soak
	@$(BIN)/python -m hapax_load --minutes $(MINUTES) --shape $(SHAPE) $(LOAD)

monitoring-lint: setup ## the chart's alert rules by promtool, its dashboard by Grafana's linter; builds both once (needs Go; three to five minutes)
	@scripts/monitoring/build.sh promtool >/dev/null
	@scripts/monitoring/build.sh dashboard-linter >/dev/null
	@$(BIN)/python -m pytest tests/tidy/test_monitoring.py

kube-binaries: ## a Kubernetes and helm from their Go modules, once, into the user's cache (needs Go; six to eleven minutes)
	@scripts/kubernetes/build.sh

kube-images: setup ## the images of Hapax and etcd without Docker, into the user's cache; prints where they are (root)
	@$(BIN)/python scripts/images/build.py

kube-up: setup ## a Kubernetes API on loopback, or a Kubernetes with machines: make kube-up NODES=3 IMAGES=hapax-load (root); prints KUBECONFIG
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube up $(NODES) $(IMAGES)

kube-demo: setup ## 336,776 flights through Spark on Kubernetes, pods deleted on the way: each counted once (root)
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube demo $(FLIGHTS)

kube-bench: setup ## how soon others lead after brokers and machines are lost, in four ways: make kube-bench KILLS=50 (root)
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube bench $(KILLS)

kube-test: setup ## the chart on machines, some of which die: on KUBECONFIG's cluster, or on one made for it (root)
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube test $(if $(T:tests=),$(T))

kube-down: setup ## end it and forget what it held
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube down

clean: ## remove what was built; the caches of packages and etcd stay
	@rm -rf build dist .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
