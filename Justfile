# Verbs of this project. Plain `just` lists them; `just setup` comes first.

bin := if path_exists(".venv/bin/python") == "true" { ".venv/bin/" } else { "" }

_default:
    @just --list --unsorted

# make .venv and install everything that development needs
setup:
    python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --upgrade pip
    .venv/bin/python -m pip install --quiet --editable '.[dev]'

# unit tests: no sockets to other machines, no waiting in real time
test *args:
    {{bin}}python -m pytest -n auto {{args}}

# what `test` leaves out: sweeps, and whole processes under load
test-slow *args:
    {{bin}}python -m pytest -m slow {{args}}

# tests with real peers and clients (Java 17, Maven, Go); --broker apache tests the tests
interop *args:
    {{bin}}python -m pytest tests/interop {{args}}

# trio-mq and Apache side by side; the machine should be quiet
bench *args:
    {{bin}}python -m bench {{args}}

# every kind of messaging under load, trio-mq and Apache side by side; --kill kills the brokers meanwhile
bench-messaging *args:
    {{bin}}python -m bench.messaging {{args}}

# the Python client and Apache's Java client on one Apache broker
bench-client *args:
    {{bin}}python -m bench.client {{args}}

# starts on a large store, by both paths, and Apache's; the first run makes the store
bench-recovery *args:
    {{bin}}python -m bench.recovery {{args}}

# a slave catches up, comes back and stops: pairs of trio-mq and of Apache's
bench-ha *args:
    {{bin}}python -m bench.ha {{args}}

# ruff, and the layout that ruff would give
lint:
    {{bin}}python -m ruff check .
    {{bin}}python -m ruff format --check .

# mypy, strict
types:
    {{bin}}python -m mypy

# rewrite files into the common layout
format:
    {{bin}}python -m ruff check --fix .
    {{bin}}python -m ruff format .

# write the generated pages of docs/reference
docs:
    {{bin}}python docs/generate.py
    {{bin}}python docs/generate_request_codes.py
    {{bin}}python docs/generate_api.py

# what CI runs, without the real peers
check: lint types test
    {{bin}}python docs/generate.py --check
    {{bin}}python docs/generate_request_codes.py --check
    {{bin}}python docs/generate_api.py --check

# run broker and name server on the default ports
serve *args:
    {{bin}}python -m trio_mq serve {{args}}

# cut the power after each disk operation, with one workload after the other, until interrupted; --seed N, --cuts M
crash-sweep *args:
    {{bin}}python -m tests.sweep {{args}}

# masters and slaves of a simulated cluster, through all that goes wrong, with one seed after the other; --runs N, --seed N
ha-sim *args:
    {{bin}}python -m tests.ha.sim {{args}}
