# The one door for people and for CI. Every target sets up what it needs; a second run is quick.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo test lint format chaos side-by-side bench race bench-path bench-tree bench-kernels compile-kernels clean

setup: $(READY)

$(READY): pyproject.toml scripts/install
	PYTHON=$(PYTHON) scripts/install $(VENV)
	touch $@

demo: $(READY)  ## two real model workers and the router, round robin against cache aware
	$(BIN)/warmroute demo

test: lint  ## lint, types and every test; a browser, Prometheus and helm are fetched where they are missing
	scripts/chromium
	scripts/prometheus
	scripts/helm
	scripts/crd-schemas
	$(BIN)/pytest -n 2 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

chaos: $(READY)  ## three seeds of faults against the real router, some minutes
	$(BIN)/python -m warmroute_loadtest.chaos

side-by-side: $(READY)  ## the same faults before this router and others, for docs/reliability.md; 20 minutes
	scripts/rivals
	$(BIN)/python -m warmroute_loadtest.side_by_side --write-docs

bench: $(READY)  ## requests/s through the router against a direct connection, in a minute
	$(BIN)/python -m warmroute_loadtest.race --quick --parts throughput --only direct warmroute

race: $(READY)  ## this router beside others, for docs/benchmarks.md; an hour on a machine that is idle
	scripts/rivals
	$(BIN)/python -m warmroute_loadtest.race --write-docs

bench-path: $(READY)  ## CPU time of the data path, without sockets
	$(BIN)/python -m warmroute_loadtest.path_bench

bench-tree: $(READY)  ## time of a decision and memory, on a full prefix tree
	$(BIN)/python -m warmroute_loadtest.tree_bench

bench-kernels: $(READY)  ## the attention kernels beside others, on a GPU; writes a table and a JSON
	$(BIN)/python -m warmroute_kernels.bench

compile-kernels: $(READY)  ## compile every kernel for sm_80, sm_90 and sm_100, which takes no GPU; registers and spills
	$(BIN)/python -m warmroute_kernels.compile_check

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
