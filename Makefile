# make demo | make test: each sets up .venv first. PYTHON=python3.12 picks another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Versions and hashes that setup checks where they fit the machine; `make setup LOCK=` goes without.
LOCK ?= requirements-ci.txt

.PHONY: setup lock browser demo docs docs-versions package pictures test coverage mutants assurance bench \
  audit-dependencies lint format clean

setup: $(STAMP)

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt $(LOCK)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dpcohort needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python .ci/dependencies.py install --lock "$(LOCK)"
	touch $(STAMP)

# After a change of a pyproject.toml or constraints.txt, on the Python and machine the lock is for.
lock: setup
	$(BIN)/python .ci/dependencies.py lock

# Known vulnerabilities of what is installed; asks a service on the network.
audit-dependencies: setup
	@$(BIN)/python .ci/dependencies.py audit --environment $(VENV)

# The browser tests need Chromium; where it cannot be installed they are skipped and say so.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get install -y --no-install-recommends chromium >/dev/null 2>&1; } \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update >/dev/null 2>&1 \
	       && apt-get install -y --no-install-recommends chromium >/dev/null 2>&1; } \
	  || echo "Chromium is not installed and could not be: the browser tests will be skipped."

demo: setup
	$(BIN)/dpcohort demo

docs: setup
	$(BIN)/sphinx-build -W --keep-going -q -b html docs out/docs
	@echo "The documentation is in out/docs/index.html"

# The documentation of every release (tags v1.2.3) and of this tree, with a page that lists them.
docs-versions: setup
	$(BIN)/python docs/versions.py out/site

# Wheel and sdist of dpcohort and of dpcohort-lab, into dist/.
package: setup
	$(BIN)/python -m pip install --quiet hatchling==1.33.0
	$(BIN)/python -m hatchling build -d dist
	cd lab && ../$(BIN)/python -m hatchling build -d ../dist

# The pictures of the documentation, drawn and recorded anew.
pictures: setup
	$(BIN)/python docs/pictures/draw.py
	$(BIN)/python docs/pictures/record.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A worker for each core, a thread for each worker, and byte code kept for all that they start.
test: lint browser
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

# Branch coverage of each package by its own tests, held to the floors of benchmarks/coverage.toml.
coverage: setup
	$(BIN)/python benchmarks/branch_coverage.py

# Faults put into privacy-bearing code on purpose: each must make its test fail (minutes).
mutants: setup
	$(BIN)/python benchmarks/mutants.py --record

# docs/reference/assurance.md from the recorded results of results/assurance/.
assurance: setup
	$(BIN)/python benchmarks/assurance.py

# The benchmarks that compare two sides; docs/reference/benchmarks.md gets what they print (many minutes).
bench: setup
	$(BIN)/python benchmarks/bench.py

clean:
	rm -rf $(VENV) $(VENV)-audit out build dist
