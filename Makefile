# Everything a newcomer needs: `make demo`, `make test`, `make lab`. Each sets up what it lacks.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
# Two cores are enough, and no library may take them all for itself.
export OMP_NUM_THREADS ?= 1

# A test starts hundreds of processes: none needs to compile what another has, whatever a container says.
export PYTHONDONTWRITEBYTECODE :=

# Jupyter refuses to run as root unless told, as in a container.
LAB_OPTIONS := $(if $(filter 0,$(shell id -u)),--allow-root)

# What schedules, loses and moves things on real clusters, and what touches Dask's internals. In the
# order in which `make test` comes to them: some leave servers, which others count.
INTEGRATION := cluster/test_adaptive cluster/test_cluster cluster/test_elasticity \
	faults/test_exactly_once data/test_in_memory cluster/test_plain_cluster checkpoint/test_recovery \
	parameters/test_replicas scheduling/test_scheduling cluster/test_security \
	faults/test_server_faults faults/test_worker_faults
CORE := tests/checkpoint/test_manager.py tests/cluster tests/dask_compat \
	$(INTEGRATION:%=tests/integration/%.py) tests/monitor/test_scheduler_link.py \
	tests/client/test_comm_client.py tests/placement tests/strategy \
	tests/transport/test_connecting.py tests/transport/test_stream.py

# Two on two cores: a third fills the moments in which a test waits, but imports, compiles and
# collects all once more, a tenth of the CPU time. The second tier mostly waits, so it has three.
# A file's tests stay together, for they share clusters; files keep their order, as in CORE, but for
# the longest, which are the first.
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder --numprocesses

# Node is needed by those who work on psnb, for the front end; not by those who install a wheel.
FRONTEND := extension/lib/frontend.stamp
PACKAGES := extension/node_modules/.package-lock.json
FRONTEND_SOURCES := $(wildcard extension/*.json) \
	$(shell find extension/src extension/style extension/schema -type f)
# pip takes the front end as it was built here.
export HATCH_JUPYTER_BUILDER_SKIP_NPM := 1

# $(call debian,command,package) installs a package of Debian unless the command is there.
define debian
@command -v $(1) > /dev/null || { \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then \
		echo "psnb: $(1) is missing and only root can install it: apt-get install $(2)" >&2; \
		exit 1; \
	fi; \
	echo "installing $(2) from Debian, because $(1) is missing"; \
	apt-get update -qq && apt-get install -y -qq --no-install-recommends $(2); \
}
endef

.PHONY: demo lab docs test test-all test-oldest lint coverage release bench bench-all profile accuracy fuzz model soak \
	frontend node browser clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo.stamp
	$(BIN)/psnb demo

lab: $(VENV)/lab.stamp
	$(BIN)/jupyter lab $(LAB_OPTIONS) notebooks/01_quickstart.ipynb

# Each behaviour once; what is left out, and why: grep second_tier.
test: $(VENV)/test.stamp browser
	npm --prefix extension test
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) 2

# The site, from docs/ into docs/_build/html, in half a minute. Warnings and dead links in it are
# errors; all pages are read each time, as Sphinx warns of a page only when it reads it.
docs: $(VENV)/docs.stamp
	$(BIN)/python -m sphinx --builder html --fresh-env --doctree-dir docs/_build/doctrees \
		--fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "the site is docs/_build/html/index.html"

# All of it: every notebook, browser test, kind of cluster and backend, endurance, the oldest versions.
test-all: $(VENV)/release.stamp browser test-oldest docs
	npm --prefix extension test
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) 3 -m 'not soak'

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.house
	npm --prefix extension run lint

# The core of the tests with the oldest versions of what psnb needs, in an environment of their own.
# Dask before 2026.8 may wait for ever for a process that fails as it starts, which one of them has.
# Their machine code lies apart: Numba names a file in its index before it has written it, so that of
# two processes of the newer version one may read there what the older one has left.
test-oldest: export NUMBA_CACHE_DIR = $(CURDIR)/$(OLDEST)/numba
test-oldest: $(OLDEST)/test.stamp
	$(OLDEST)/bin/python -m pytest $(CORE) -k 'not demo and not cannot_start'

# Which lines of psnb the tests of `make test` run in pytest's own processes; an error below the floor
# in pyproject.toml. What runs in processes of clusters, and as machine code, is not counted.
coverage: $(VENV)/coverage.stamp browser
	$(BIN)/python -m pytest --cov --cov-report=term:skip-covered $(SIDE_BY_SIDE) 2

# Sdist and wheel, into dist/, checked; tests/test_release.py installs them.
release: $(VENV)/release.stamp
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

# psnb beside each peer that installs: ten minutes for docs/performance/peers.md and its picture. The
# first run also installs the peers into .peers, some minutes. Few and short rounds: QUICK=1.
bench: $(VENV)/test.stamp
	$(BIN)/python -m tests.benchmarks.beside $(if $(QUICK),--quick)

# Parts of psnb by themselves, each with a table of its own: half an hour and more.
bench-all: bench
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.many_workers
	$(BIN)/python -m tests.benchmarks.commits
	$(BIN)/python -m tests.benchmarks.failover
	$(BIN)/python -m tests.benchmarks.writing
	$(BIN)/python -m tests.benchmarks.restoring
	$(BIN)/python -m tests.benchmarks.security
	$(BIN)/python -m tests.benchmarks.widget
	$(BIN)/python -m tests.benchmarks.watching
	$(BIN)/python -m tests.benchmarks.frames
	$(BIN)/python -m tests.benchmarks.clicking
	$(BIN)/python -m tests.benchmarks.data
	$(BIN)/python -m tests.benchmarks.counting
	$(BIN)/python -m tests.benchmarks.formats
	$(BIN)/python -m tests.benchmarks.tables
	$(BIN)/python -m tests.benchmarks.dask_source
	$(BIN)/python -m tests.benchmarks.in_memory
	$(BIN)/python -m tests.benchmarks.files_to_model
	$(BIN)/python -m tests.benchmarks.predicting
	$(BIN)/python -m tests.benchmarks.costs
	$(BIN)/python -m tests.benchmarks.network
	$(BIN)/python -m tests.benchmarks.bags
	$(BIN)/python -m tests.benchmarks.delay
	$(BIN)/python -m tests.benchmarks.reuse
	$(BIN)/python -m tests.benchmarks.memory
	$(BIN)/python -m tests.benchmarks.looking
	$(BIN)/python -m tests.benchmarks.half_width

# Where the CPU time of a training step goes: a table by thread and function, and flame graphs in
# the folder profile. Another size of batches: SIZE=512.
profile: $(VENV)/test.stamp
	$(BIN)/python -m pip install --quiet --editable ".[profile]"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.benchmarks.profiling $(SIZE)

# What the flights model reaches, trained in different ways: a quarter of an hour. One row: ROWS=async.
accuracy: $(VENV)/test.stamp
	$(BIN)/python -m tests.accuracy $(ROWS) --seeds $(or $(SEEDS),3)

# A minute for each parser of files, and for checkpoints; longer with SECONDS=3600.
fuzz: $(VENV)/test.stamp
	$(BIN)/python -m pip install --quiet --editable ".[fuzz]"
	nice $(BIN)/python -m tests.fuzz all $(or $(SECONDS),60)

# A million steps of the protocol in a simulated world; more with STEPS=10000000, others with SEED=1.
model: $(VENV)/test.stamp
	nice $(BIN)/python -m tests.model $(or $(STEPS),1000000) $(or $(SEED),0)

# Everything at once while processes die, for five minutes; an hour with SECONDS=3600. The seed that
# it prints repeats its choices: SEED=...
soak: $(VENV)/test.stamp
	nice $(BIN)/python -m tests.soak $(or $(SECONDS),300) $(if $(SEED),--seed $(SEED))

$(VENV)/bin/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'psnb needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "installing psnb and what it needs into $(VENV): a minute or two, once"
	$(BIN)/python -m pip install --quiet --editable ".[demo]"
	touch $@

# What an editable install puts beside Python code is a copy: it comes after the build, each time.
$(VENV)/lab.stamp: pyproject.toml $(FRONTEND) | $(VENV)/bin/python
	@echo "installing psnb with its panel into $(VENV): a minute or two, once"
	$(BIN)/python -m pip install --quiet --editable ".[demo]"
	touch $@ $(VENV)/demo.stamp

$(VENV)/test.stamp: pyproject.toml $(FRONTEND) | $(VENV)/bin/python
	@echo "installing psnb and what its tests need into $(VENV): a minute or two, once"
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $@ $(VENV)/demo.stamp $(VENV)/lab.stamp

$(VENV)/docs.stamp: $(VENV)/test.stamp
	@echo "installing what builds the site into $(VENV): half a minute, once"
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	touch $@

$(VENV)/coverage.stamp $(VENV)/release.stamp: $(VENV)/%.stamp: $(VENV)/test.stamp
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@

# Made anew for other bounds, so that no newer version stays.
$(OLDEST)/test.stamp: pyproject.toml tests/oldest.py
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'psnb needs Python 3.11 or newer')"
	$(PYTHON) -m venv --clear $(OLDEST)
	$(PYTHON) tests/oldest.py > $(OLDEST)/constraints.txt
	@echo "installing psnb and the oldest versions of what it needs into $(OLDEST): some minutes, once"
	$(OLDEST)/bin/python -m pip install --quiet --editable ".[test]" --constraint $(OLDEST)/constraints.txt
	touch $@

frontend: $(FRONTEND)

$(FRONTEND): $(PACKAGES) $(FRONTEND_SOURCES)
	npm --prefix extension run build
	touch $@

$(PACKAGES): extension/package.json extension/package-lock.json | node
	@echo "installing what builds the front end into extension/node_modules: half a minute, once"
	npm --prefix extension ci --no-audit --no-fund
	touch $@

node:
	$(call debian,npm,npm)

browser:
	$(call debian,chromium,chromium)


clean:
	rm -rf $(VENV) $(OLDEST) .peers docs/_build psnb-demo .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf extension/node_modules extension/lib extension/build psnb/labextension psnb/_src/monitor/static
