# Every verb installs what it needs; `make help` lists the verbs.
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
SECURE ?=
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
ARCHIVES ?=
VERSION ?=
SHORT ?=

.PHONY: help setup demo secure-demo test test-one test-clients security-test lint bench bench-guarantees proto docs scenarios-update spark-matrix golden backup-test upgrade-test sim sim-seed sim-summary explore chaos load mutants monitoring-lint kube-binaries kube-images kube-up kube-down kube-bench kube-demo kube-test kube-upgrade cert-manager-test audit-deps sbom release release-test clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install the virtual environment, packages, etcd, and a Java for Spark; fast if they exist
	@scripts/setup.sh

demo: setup ## count 336,776 flights exactly once while processes are killed, next to weaker settings
	@$(BIN)/python -m hapax_spark.demo

secure-demo: setup ## two tenants on a closed cluster: one refused, certificates and a password replaced under load, nothing lost
	@$(BIN)/python -m scripts.secure_demo

test: lint ## run lint, type checks, layering checks and all tests
	@# Tests for the most part wait for processes, and tests/kubernetes even more: five workers keep two cores busy. The
	@# latter run beside the others, and are printed after them.
	@mkdir -p build; \
	PYTHONPATH=tests $(BIN)/python -m integration.spark_classes; \
	$(BIN)/python -m pytest -n 2 -rs tests/kubernetes >build/test-kubernetes.log 2>&1 & kubernetes=$$!; \
	code=0; \
	$(BIN)/python -m pytest -n 3 -rs tests --ignore tests/kubernetes || code=$$?; \
	wait $$kubernetes || code=$$?; \
	cat build/test-kubernetes.log; \
	exit $$code

test-one: setup ## run one test or folder: make test-one T=tests/unit/core
	@$(BIN)/python -m pytest $(T)

test-clients: setup ## run the whole matrix of other projects' clients, of which make test runs a slice
	@CLIENTS=all $(BIN)/python -m pytest -v -rs tests/clients

security-test: setup ## run all tests about security: abuse cases, clients over TLS and logins, fuzzers (below ten minutes)
	@PYTHONPATH=tests $(BIN)/python -m security -n 2 -rs

lint: setup ## run ruff, mypy and import-linter; check that generated code and pages are current
	@$(BIN)/ruff check
	@$(BIN)/mypy services/hapax spark/hapax_spark operator/hapax_operator load/hapax_load scripts examples
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/generate_proto.py --check
	@$(BIN)/python scripts/generate_docs.py --check
	@$(BIN)/python scripts/images/requirements.py --check

bench: setup ## measure the figures of docs/benchmarks.md; also writes build/bench.jsonl
	@PYTHONPATH=tests $(BIN)/python -m bench

bench-guarantees: setup ## measure what each guarantee costs, next to Apache Kafka (16 minutes; SHORT=1: three); updates docs/guarantees.md
	@PYTHONPATH=tests $(BIN)/python -m bench.guarantees $(if $(SHORT),--short)

proto: setup ## regenerate services/hapax/rpc/gen from proto/
	@$(BIN)/python scripts/generate_proto.py

docs: setup ## regenerate docs/settings.md, docs/metrics.md and the images' lock files
	@$(BIN)/python scripts/generate_docs.py
	@$(BIN)/python scripts/images/requirements.py

scenarios-update: setup ## rewrite the output in the golden scenario scripts; review the diff
	@HAPAX_UPDATE_SCENARIOS=1 $(BIN)/python -m pytest tests/scenarios

spark-matrix: setup ## test changed checkpoints and jobs in a real Spark; updates docs/spark.md: make spark-matrix ONLY='streaming/*'
	@SPARK_MATRIX='$(ONLY)' $(BIN)/python -m pytest tests/integration/spark_matrix

golden: setup ## store the present formats as a new golden version: make golden VERSION=v2
	@PYTHONPATH=tests $(BIN)/python -m golden $(VERSION)

backup-test: setup ## back up and restore clusters while processes are killed, in a folder and in an object store
	@BACKUP=all $(BIN)/python -m pytest tests/integration/test_backup.py tests/integration/test_backup_faults.py

upgrade-test: setup ## upgrade a cluster from an earlier commit and downgrade it, under load: make upgrade-test FROM=HEAD~1
	@UPGRADE_FROM=$(FROM) $(BIN)/python -m pytest -s tests/upgrade

sim: setup ## simulate clusters under faults: make sim SEEDS=1-100 HOURS=0.02 SCENE=lively
	@PYTHONPATH=tests $(BIN)/python -m hapax_sim --seeds $(SEEDS) --hours $(HOURS) --scene $(SCENE) $(SIM) \
	    --results build/sim/results.jsonl

sim-seed: setup ## simulate one history and write its trace: make sim-seed SEED=7
	@PYTHONPATH=tests $(BIN)/python -m hapax_sim --seed $(SEED) --hours $(HOURS) --scene $(SCENE) $(SIM) --trace

sim-summary: setup ## write docs/simulation-results.md from the results of make sim
	@PYTHONPATH=tests $(BIN)/python -m hapax_sim.results build/sim/results.jsonl

explore: setup ## explore every interleaving of the real machines in small scopes: make explore SCOPE=owners LIMIT=10000000
	@PYTHONPATH=tests $(BIN)/python -m hapax_explore --limit $(LIMIT) $(addprefix --scope ,$(SCOPE))

mutants: setup ## put about three hundred bugs into a copy of the code, one by one; each must be found; updates docs/mutants.md
	@PYTHONPATH=tests $(BIN)/python -m hapax_mutants --write

chaos: setup ## inject faults into real processes and check the histories: make chaos MINUTES=10 ONLY='kill@*' SECURE=1
	@PYTHONPATH=tests $(BIN)/python -m hapax_chaos --minutes $(MINUTES) --only '$(ONLY)' $(if $(SECURE),--secure)

copy-test: setup ## copies from Apache Kafka and from Hapax while everything is killed, judged by the checker (under ten minutes): make copy-test COPY_SECONDS=120
	@COPY_TEST_SECONDS=$(or $(COPY_SECONDS),100) $(BIN)/python -m pytest -s tests/copying

load: setup ## put load on a cluster whose processes are killed, then count the records: make load MINUTES=30 SHAPE=soak, LOAD='--secure --rotate-every 20'
	@$(BIN)/python -m hapax_load --minutes $(MINUTES) --shape $(SHAPE) $(LOAD)

monitoring-lint: setup ## check the chart's alert rules and dashboard; builds both linters once (needs Go; three to five minutes)
	@scripts/monitoring/build.sh promtool >/dev/null
	@scripts/monitoring/build.sh dashboard-linter >/dev/null
	@$(BIN)/python -m pytest tests/tidy/test_monitoring.py

kube-binaries: ## build a Kubernetes and helm once, into the user's cache (needs Go; six to eleven minutes)
	@scripts/kubernetes/build.sh

kube-images: setup ## build the images of Hapax and etcd without Docker, into the user's cache; prints their paths (root)
	@$(BIN)/python scripts/images/build.py

kube-up: setup ## start a Kubernetes API on loopback, or with NODES=3 a Kubernetes with machines (root); prints KUBECONFIG
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube up $(NODES) $(IMAGES)

kube-demo: setup ## count 336,776 flights through Spark on Kubernetes exactly once while pods are deleted (root)
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube demo $(FLIGHTS)

kube-upgrade: setup ## upgrade a release of the first phase (commit a76baed) to this one under load: nothing lost, no pause above 5 s (root)
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube upgrade

kube-bench: setup ## measure failovers after the loss of brokers and machines: make kube-bench KILLS=50 (root)
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube bench $(KILLS)

kube-test: setup ## test the chart on machines that fail: on KUBECONFIG's cluster, or on one of its own (root)
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube test $(if $(T:tests=),$(T))

cert-manager-test: setup ## build cert-manager's controllers from Go modules (three minutes, once), and have them issue a release's certificates
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube.cert_manager
	@$(BIN)/python -m pytest -rs tests/kubernetes/test_cert_manager.py

kube-down: setup ## stop the Kubernetes of kube-up and delete its data
	@PYTHONPATH=tests $(BIN)/python -m hapax_kube down

audit-deps: setup ## fail if a pinned dependency has a known vulnerability without an exception; needs osv.dev and Go's proxy
	@$(BIN)/python -m scripts.supply.audit

sbom: setup ## write build/sbom: what each image and the wheel consist of, as CycloneDX: make sbom ARCHIVES='PATH ...'
	@$(BIN)/python -m scripts.supply.sbom $(addprefix --archive ,$(ARCHIVES))

release: setup ## build a release of this commit into build/release, and publish nothing: make release VERSION=1.2.0 (root; IMAGES=none: no images)
	@$(BIN)/python -m scripts.release $(if $(VERSION),'$(VERSION)',--help) $(if $(IMAGES),--images '$(IMAGES)')

release-test: setup ## try a release as a newcomer would, or without VERSION a candidate of this commit, built twice: make release-test VERSION=1.2.0
	@PYTHONPATH=tests $(BIN)/python -m hapax_release $(VERSION) $(if $(IMAGES),--images '$(IMAGES)')

clean: ## remove build results; the caches of packages and etcd stay
	@rm -rf build dist .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
