# Two commands for users: make demo, make test. CI runs the second one.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
RECIPE := sample_runs/recipe
# One thread a test worker: two workers on two cores are faster than two threads that wait for each other.
PYTEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

.PHONY: demo test check types bench sample-run sample-score pictures manual wheel chromium clean

demo: .venv/demo
	$(BIN)/credit-inspector demo --out demo $(ARGS)

test: .venv/dev chromium check wheel
	$(PYTEST) -n 2 --dist loadfile --ignore tests/fuzz tests
	$(PYTEST) -n 2 --dist load tests/fuzz

check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

wheel: .venv/dev
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . > /dev/null
	@ls dist/*.whl

bench: .venv/dev
	@failed=0; for script in benchmarks/*.py; do echo "$$script"; $(BIN)/python $$script || failed=1; done; exit $$failed

sample-run: .venv/dev
	$(BIN)/python $(RECIPE)/make.py --out sample_runs/countdown $(ARGS)

sample-score: .venv/dev
	$(BIN)/python $(RECIPE)/score.py sample_runs/countdown $(ARGS)

pictures: .venv/dev chromium
	$(BIN)/python tests/browser/pictures.py docs/pictures

manual: .venv/dev
	$(BIN)/python docs/console.py

# Debian's package; the tests name its place.
chromium:
	@command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-noto-cjk > /dev/null; }

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[app,compute]"
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[all,dev]"
	@touch $@

clean:
	rm -rf .venv dist demo
