# Everything a developer or a first-time user types. `make help` lists it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
BUDGET ?= 20
OUT    ?= launch
FORMAT ?= torchrun

.PHONY: help tune facts new-check new-knob new-format new-option test test-fast test-consumers test-scripts equivalence trained test-fixes test-ipex test-vm test-nodes nightly faults fuzz mutants audit lint type doc dist bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# pip learnt dependency groups in 25.1; the venv module brings an older one.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"

# PyPI's torch for Linux brings CUDA along, 5 GB of it; this page has it without. Where it cannot be
# reached, pip takes what it finds elsewhere.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-deps --retries 0 --extra-index-url $(TORCH_INDEX) \
	  -c constraints.txt torch
	@touch $@

$(VENV)/.tune: pyproject.toml constraints.txt | $(VENV)/.torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[tune]" datasets
	@touch $@

# Linters and type checkers read torch's name alone: they install without it.
$(VENV)/.lint: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e . --group lint
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt tests/consumers/install.py | $(VENV)/.torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[tune]" datasets --group dev
	$(BIN)/python tests/consumers/install.py
	@touch $@

tune: $(VENV)/.tune  ## install, look at this machine, tune the embedded recipe, write the launch
	-$(BIN)/cputune doctor
	$(BIN)/cputune tune --budget $(BUDGET)
	$(BIN)/cputune emit --format $(FORMAT) -o $(OUT)
	@echo "To type cputune yourself: . $(BIN)/activate"

# Tests that start ranks follow one another in one worker (tests/conftest.py); the rest runs beside them.
# A worker more than CPUs: a third of the time tests wait for what ends, is silent or is too late.
# With bytecode, whatever the environment says: without it each of a thousand children compiles cputune.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
WORKERS ?= $(shell expr 1 + $$(getconf _NPROCESSORS_ONLN))
T ?=
test: $(VENV)/.dev  ## install and run the whole suite, or a part of it (T=tests/knobs)
	$(PYTEST) --numprocesses=$(if $(T),0,$(WORKERS)) --dist=loadgroup --durations=15 $(T)

test-fast: $(VENV)/.dev  ## the part of the suite that trains nothing, without what takes long (a minute and a half)
	$(PYTEST) --numprocesses=$(WORKERS) -m "not torch and not consumer and not slow" $(T)

# About 7 GB: PyPI's torch 2.8.0 brings the CUDA libraries, and IPEX has no other partner.
.venv-ipex/.installed: pyproject.toml constraints-ipex.txt
	$(PYTHON) -m venv .venv-ipex
	.venv-ipex/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	.venv-ipex/bin/python -m pip install --quiet -c constraints-ipex.txt -e ".[tune]" \
	  intel_extension_for_pytorch --group test
	@touch $@

test-ipex: .venv-ipex/.installed  ## build the IPEX-era environment and tune there for real
	.venv-ipex/bin/python -m pytest -m ipex tests/ipex

# Root and the network are needed once, to build the guest's disk; it is kept in the cache.
test-vm: $(VENV)/.dev  ## a guest of two sockets in qemu: the doctor and launches on a real kernel
	$(BIN)/python tests/vm/image.py
	$(BIN)/python -m pytest -m vm tests/vm

# Hosts are network namespaces of this machine: root, and Debian's openssh-server, iptables, Slurm.
test-nodes: $(VENV)/.dev  ## two hosts on this machine: doctor, tune, launches, Slurm over both (root)
	$(BIN)/python tests/nodes/install.py
	$(BIN)/python tests/consumers/install.py mpich openmpi4 openmpi5 impi
	$(BIN)/python -m pytest -m "nodes or matrix" tests/nodes \
	  --junitxml=build/nodes.xml; ended=$$?; $(BIN)/python docs/engines_page.py build/nodes.xml; \
	  exit $$ended

test-scripts: $(VENV)/.dev  ## what is like others or long: each script run, tuned, launched, verified (half an hour)
	$(BIN)/python -m pytest -m matrix

equivalence: $(VENV)/.dev  ## script × knob value: what the equivalence check accepts of 86 training scripts (half an hour)
	$(BIN)/python benchmarks/equivalence/matrix.py

trained: $(VENV)/.dev  ## 61 scripts trained to the end as typed and with a plan: is what was accepted right? (half an hour)
	$(BIN)/python benchmarks/equivalence/trained.py --forks

test-fixes: $(VENV)/.dev  ## plant faults of environments, type the fix that is printed, train (half an hour)
	$(BIN)/python -m pytest -m fixes tests/faults/fixes

test-consumers: $(VENV)/.dev  ## hand files to every consumer that can be had, Intel MPI and Slurm too
	$(BIN)/python tests/consumers/install.py --all
	$(BIN)/python -m pytest -m consumer

nightly: MOST :=
nightly: test-scripts test-fixes test-consumers faults mutants  ## what takes too long for `make test`, all of it

faults: $(VENV)/.dev  ## every fault, tried often, as a table; a quarter of an hour
	PYTHONPATH=tests $(BIN)/python -m faults

# Of each module four faults, the same ones every time; of modules that are named, and at night,
# every one.
ONLY ?=
MOST ?= $(if $(ONLY),,--most 4)
mutants: $(VENV)/.dev  ## plant faults in the modules that decide: do their tests notice? (ONLY=layout)
	PYTHONPATH=tests nice -n 15 $(BIN)/python -m mutants $(MOST) $(ONLY)

# Wheels of every minor release are downloaded once, 1 GB, into the user's cache.
facts: $(VENV)/.dev  ## read the wheels of the libraries again: cputune/stack/interface.zip
	$(BIN)/python tools/facts.py

SECONDS ?= 60
fuzz: $(VENV)/.dev  ## look SECONDS for input that is neither read nor refused, for each reader
	FUZZ_SECONDS=$(SECONDS) $(BIN)/python -m pytest tests/fuzz

$(VENV)/.audit: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt --group audit
	@touch $@

# Strict: what could not be looked up is a failure, and not a clean bill.
audit: $(VENV)/.dev $(VENV)/.audit  ## known vulnerabilities of all that is installed (needs PyPI)
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > $(VENV)/frozen.txt
	@$(BIN)/pip-audit --strict --disable-pip --no-deps --progress-spinner off \
	  -r $(VENV)/frozen.txt || { echo "make audit: no clean bill. Above stand the vulnerabilities," \
	  "or the first package of which PyPI's advisories could not be had (a mirror, no network):" \
	  "then nothing is known of any." >&2; exit 1; }

# CONTRIBUTING.md says what each consists of; tests/test_filled.py fails until it is filled.
NAME ?=
IN ?= tune
new-check:  ## begin a check: NAME=swap-full IN=limits (a theme of cputune/doctor/checks/)
	@$(PYTHON) tests/new.py check "$(NAME)" "$(IN)"

new-knob:  ## begin a knob: NAME=page_size
	@$(PYTHON) tests/new.py knob "$(NAME)"

new-format:  ## begin a format of emit: NAME=ray
	@$(PYTHON) tests/new.py format "$(NAME)"

new-option:  ## begin an option: NAME=keep_going IN=tune (or emit, or cluster)
	@$(PYTHON) tests/new.py option "$(NAME)" "$(IN)"

lint: $(VENV)/.lint  ## ruff, one-way imports, workflows, issue forms, the glossary (installs no torch)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/problem.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --schemafile docs/recipe.schema.json recipes/*.toml
	$(BIN)/python tools/glossary.py

type: $(VENV)/.lint  ## mypy --strict (installs no torch)
	$(BIN)/mypy

# No torch here either. mkdocs-material advertises its successor on every run. Not --quiet: it takes the
# warnings away that --strict counts.
$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e . --group docs
	@touch $@

doc: $(VENV)/.docs  ## write the pages of docs/ that are made, build the site into site/ (strict)
	PYTHONPATH=tests $(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

# By hash, and nothing that would be compiled: what is built here is what people install.
$(VENV)/.dist: requirements-release.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: -r requirements-release.txt
	@touch $@

dist: $(VENV)/.dist  ## build the wheel and the sdist into dist/ and look them over
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

bench: $(VENV)/.dev  ## ratios against the peers; needs a quiet machine
	$(BIN)/python benchmarks/doctor.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/wall.py
	$(BIN)/python benchmarks/emit.py
	$(BIN)/python benchmarks/knobs.py
	$(BIN)/python benchmarks/load.py

clean:  ## remove what the targets above have made
	rm -rf $(VENV) .venv-ipex build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
