# `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

UV = $$(scripts/bootstrap.sh)
RUN = $(UV) run --frozen --no-sync
export GRPO_CACHE_DIR ?= $(HOME)/.cache/grpo-operator
TRAINER_ENV = $(GRPO_CACHE_DIR)/venvs/trainer-cpu
CONFORMANCE_DIR = $(GRPO_CACHE_DIR)/venvs/conformance
# Where real processes, control planes and Ray take their own time, a test gets a second try, and the summary names it.
GANG_TESTS = tests/apiserver/test_gangs.py tests/apiserver/test_kueue.py
RERUN = --reruns 1 --max-suite-reruns 2 --rerun-show-tracebacks
TRAINER_RUN = UV_PROJECT_ENVIRONMENT=$(TRAINER_ENV) $(UV) run --frozen --no-sync

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Fresh machine to a running, learning GRPOJob (builds a Kubernetes and both images the first time)
	@python3 scripts/demo.py

.PHONY: setup
setup: ## Virtual environment with the operator, the CLI and the development tools
	@$(UV) sync --frozen --quiet --extra operator --extra cli --group dev

.PHONY: setup-trainer
setup-trainer: ## Virtual environment with the CPU trainer (torch, vLLM, Ray), outside the tree
	@python3 -m local_cluster.packages compiler
	@UV_PROJECT_ENVIRONMENT=$(TRAINER_ENV) $(UV) sync --frozen --quiet --extra trainer-cpu --group dev

.PHONY: unit
unit: setup ## Unit tests that need neither torch nor a cluster (under a minute)
	@$(RUN) python -m pytest tests/unit/api tests/unit/operator tests/unit/cli

.PHONY: unit-trainer
unit-trainer: setup-trainer ## Unit tests of the trainer
	@$(TRAINER_RUN) python -m pytest $(RERUN) tests/unit/trainer

.PHONY: simulate-gangs
simulate-gangs: setup ## The line of gang backend `gated` over 10,000 random clusters (ten minutes; not part of `make test`)
	@PYTHONPATH=.:api:operator $(RUN) python -m tests.unit.operator.gang_simulation

.PHONY: conformance
conformance: setup-trainer ## The trainer's mathematics against verl's and TRL's own functions
	@$(UV) pip install --quiet --python $(TRAINER_ENV) --no-deps --require-hashes --target $(CONFORMANCE_DIR) \
		-r tests/conformance/requirements.txt
	@PYTHONPATH=$(CONFORMANCE_DIR) $(TRAINER_RUN) python -m pytest tests/conformance

.PHONY: lint
lint: setup ## ruff, type checker, import rules, generated files
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@$(RUN) lint-imports
	@$(RUN) python charts/tools/generate.py --check

.PHONY: generate
generate: setup ## Write the generated files: CRD, dashboard, metrics reference
	@$(RUN) python charts/tools/generate.py

.PHONY: format
format: setup ## Format and fix what ruff can
	@$(RUN) ruff format .
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

.PHONY: binaries
binaries: ## Build the local cluster's binaries (once, then cached)
	@python3 -m local_cluster build

.PHONY: cluster
cluster: ## A Kubernetes: the one that GRPO_KUBE_CONTEXT names, else kind, else one built here
	@python3 -m local_cluster up

.PHONY: cluster-down
cluster-down: ## Stop the local cluster and remove its state
	@python3 -m local_cluster down

.PHONY: images
images: ## Build both images and load them into the local cluster
	@python3 -m local_cluster.image_build all

.PHONY: apiserver
apiserver: setup ## Tests against a real API server, scheduler and controller-manager
	@python3 -m local_cluster.packages tests
	@$(RUN) python -m pytest $(RERUN) tests/apiserver tests/cluster tests/chart \
		$(addprefix --ignore=,tests/apiserver/test_chaos.py $(GANG_TESTS))

.PHONY: gangs
gangs: setup ## What every gang backend must do, with a real scheduler and a real Kueue
	@$(RUN) python -m tests.apiserver.kueue
	@$(RUN) python -m pytest $(RERUN) $(GANG_TESTS)

.PHONY: chaos-short
chaos-short: setup ## Three minutes of random faults over 50 jobs on a control plane of its own (GRPO_CHAOS_SEED=7)
	@$(RUN) python -m pytest $(RERUN) tests/apiserver/test_chaos.py

.PHONY: chaos
chaos: setup ## 30 minutes of random faults on a control plane of its own (CHAOS="--minutes 5 --seed 7")
	@$(RUN) python -m tests.apiserver.chaos $(CHAOS)

.PHONY: integration
integration: setup-trainer ## The trainer's loop with real Ray and vLLM, without a cluster
	@$(TRAINER_RUN) python -m pytest $(RERUN) tests/integration

.PHONY: e2e
e2e: setup ## End-to-end tests on the local cluster (make cluster images first)
	@$(RUN) python -m pytest $(RERUN) tests/e2e

.PHONY: scale
scale: setup ## 1,000 jobs, and KubeRay's operator beside ours (a quarter of an hour; not part of `make test`)
	@python3 -m local_cluster build control-plane
	@$(RUN) python -m benchmarks.operator_scale --kuberay

.PHONY: test
test: ## Everything that CI runs
	@python3 scripts/ci.py
