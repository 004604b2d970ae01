# Every target sets up .venv by itself. Python 3.11 or newer and make are all that is needed.
PYTHON ?= python3
BIN := .venv/bin
# Tests wait for processes and clocks: one more than two cores keeps both busy.
JOBS ?= 3

.PHONY: browser pooler pictures demo test check docs dist bench bench-peers soak clean

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/ready
	$(BIN)/holdfast demo

test: .venv/ready browser pooler
	$(BIN)/python -m pytest -n $(JOBS) -q

# Tests of the pages drive a real Chromium: the one that is here, else Debian's package.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq chromium; } || \
		echo 'Chromium is missing and could not be installed: tests/server/test_browser.py will fail'

# Pictures of the viewer in README and docs, taken by a real browser.
pictures: .venv/ready browser
	$(BIN)/python tests/server/pictures.py

# Tests of PostgreSQL behind a proxy start a real PgBouncer: the one that is here, else Debian's.
pooler:
	@command -v pgbouncer >/dev/null || test -x /usr/sbin/pgbouncer || \
		{ apt-get update -qq && apt-get install -y -qq pgbouncer; } || \
		echo 'PgBouncer is missing and could not be installed: tests/stores/test_postgres_pooler.py will fail'

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation site, from docs/ and the docstrings, into site/.
docs: .venv/ready
	$(BIN)/zensical build --strict --config-file mkdocs.yml

# Wheel and sdist, into dist/: `uvx --from dist/*.whl holdfast demo` runs them.
dist: .venv/ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .

# The bench has its own, of the quickest Python there is: see bench/interpreter.py.
.venv-bench/ready: .venv/ready
	rm -rf .venv-bench
	$$($(PYTHON) bench/interpreter.py) -m venv --without-pip .venv-bench
	$(BIN)/python -m pip --python .venv-bench install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[monty,bench]'
	touch $@

bench: .venv-bench/ready
	.venv-bench/bin/python -m bench

# The same work in Holdfast, LangGraph, DBOS and the OpenAI Agents SDK; hours at full size.
bench-peers: .venv-bench/ready
	.venv-bench/bin/python -m bench.side_by_side $(ARGS)

soak: .venv/ready
	$(BIN)/python -m pytest -n $(JOBS) -q -m soak --timeout 0 --override-ini addopts='--strict-config --strict-markers' tests

clean:
	rm -rf .venv .venv-bench build dist site *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
