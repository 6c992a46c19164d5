# `make demo` and `make test` set up all they need on a machine with Python 3.11+, Java 17 and make.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DIR ?=
STORAGE ?=
KILLS ?= 50

# The version that figures are compared with, where its jars are kept.
FLINK_VERSION := 2.3.0
FLINK_LIBRARIES = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/holdfast/flink-$(FLINK_VERSION)

# uv from the machine where there is one, else from PyPI into .tools
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)

export UV_PROJECT_ENVIRONMENT := $(VENV)
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed -E 's/^([a-z0-9-]+):.*## /\1	/' | expand -t 14

.PHONY: demo
demo: setup java ## kill and restart two jobs on real data, then check every row; PIPELINE=orders has Kafka, Delta and Iceberg; DIR=... keeps the output, STORAGE=s3|gcs|azure|hdfs has a server
	$(BIN)/python -m examples.$(or $(PIPELINE),demo) $(if $(DIR),--dir "$(DIR)") $(if $(STORAGE),--storage "$(STORAGE)")

# tests/xdist_scheduler.py distributes files. Tests also wait, so one process for each core would leave cores idle.
# Each process collects all tests first: for the short tests of `make test` a fourth one costs more than it saves.
IN_PARALLEL := --maxprocesses 4 --dist loadfile --numprocesses

.PHONY: test
test: export HYPOTHESIS_PROFILE ?= quick
test: setup java ## the tests, fast and without network; includes real Spark; TESTS="tests/backends" for some of them
	$(BIN)/pytest $(IN_PARALLEL) auto --maxprocesses 3 -m "not exhaustive" $(or $(TESTS),tests) $(ARGS)

.PHONY: test-lowest
test-lowest: setup java ## tests of state and of Spark jobs on the lowest versions that pyproject.toml allows
	PYTHON=$(BIN)/python infra/versions/run --quick lowest

.PHONY: test-newest
test-newest: setup java ## the tests that need a newer PySpark than that of requirements.lock
	PYTHON=$(BIN)/python infra/versions/run --quick pyspark-4.3

KEYED = $(wildcard $(addprefix tests/spark/test_,$(addsuffix .py,aggregates canonical_savepoints claimed_keyed_state continuation \
  data_source event_time forward group_state* importing_* key_hash keyed_* processor* rescaling returning_to_spark routing \
  several_operators streams_by_key idle_ticks windows writing_savepoints))) integration_tests/spark/test_keyed_state.py

# The guarantees of keyed state hold for each backend; CI runs the tests that differ.
.PHONY: test-keyed
test-keyed: setup java ## the Spark tests of keyed state over BACKEND=rocksdb, or heap
	HOLDFAST_TESTS_BACKEND=$(or $(BACKEND),rocksdb) $(BIN)/pytest $(IN_PARALLEL) auto $(KEYED) $(ARGS)

.PHONY: test-all
test-all: export HYPOTHESIS_PROFILE ?= quick
test-all: setup java s3-servers azure-server hdfs-servers kafka-servers table-jars browser ## each test once: these, those that are too slow for them, and integration
	$(BIN)/pytest $(IN_PARALLEL) auto tests integration_tests $(ARGS)

.PHONY: integration
integration: setup java s3-servers azure-server hdfs-servers kafka-servers table-jars browser ## the tests that start servers or whole jobs
	$(BIN)/pytest $(IN_PARALLEL) auto integration_tests $(ARGS)

.PHONY: kills
kills: setup java s3-servers ## kill each of the demo's jobs KILLS=50 times at random moments, on local storage and on S3
	HOLDFAST_KILLS=$(KILLS) $(BIN)/pytest -s integration_tests/test_random_kills.py $(ARGS)

.PHONY: proof
proof: setup java s3-servers azure-server ## try to refute what Holdfast promises, and write docs/proof.md; ARGS=--short takes a minute of CPU
	PYTHONPATH=tests $(BIN)/python -m proof $(ARGS)

# A package of compiled code for Linux, which only this needs, so it is not locked.
build/atheris/.ready: | $(UV)
	$(UV) pip install --quiet --no-deps --python $(BIN)/python --target $(@D) "atheris>=3.0,<4"
	touch $@

.PHONY: fuzz
fuzz: setup build/atheris/.ready ## bad bytes led by coverage, ten minutes for each reader; SECONDS_EACH=60 READER=segments CORPUS=DIR keeps the inputs that it finds
	@for reader in $(or $(READER),_metadata pointers operator manifests segments Flink); do \
	  PYTHONPATH=tests:build/atheris $(BIN)/python -m proof.guided_bytes "$$reader" --seconds $(or $(SECONDS_EACH),600) \
	    $(if $(CORPUS),--corpus "$(CORPUS)/$$reader") || exit; \
	done

# Out of CI: it asks a database over the network, and its answer changes without a change here.
ADVISORIES ?=
.PHONY: audit
audit: setup ## known vulnerabilities of what requirements.lock names; asks PyPI, or ADVISORIES=DIR, a clone of pypa/advisory-database
	$(if $(ADVISORIES),$(BIN)/python infra/checks/known_vulnerabilities.py "$(ADVISORIES)",$(UV) tool run --quiet pip-audit --strict --requirement requirements.lock --require-hashes --disable-pip --progress-spinner off)

# Drivers that tests and the demo start live for seconds: most of that time Spark's classes would be
# loaded and compiled. A Java that makes no archive of them is only slower.
SPARK_CLASSES := build/spark-classes.jsa

# Spark puts the ZIP of PySpark that it finds in its home before all else on the path of Python, and each process
# that it starts for a data source or a Connect query would compile PySpark from there. This home has none.
SPARK_HOME_OF_TESTS := build/spark-home

demo test test-all test-keyed integration kills proof: $(SPARK_CLASSES)
demo test test-all test-keyed integration kills proof: export SPARK_HOME := $(CURDIR)/$(SPARK_HOME_OF_TESTS)
demo test test-all test-keyed integration kills proof: export SPARK_SUBMIT_OPTS += -XX:SharedArchiveFile='$(CURDIR)/$(SPARK_CLASSES)' \
  -Xlog:disable -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK

# Images of containers often forbid Python to keep what it has compiled. Then each process of a test
# would compile PySpark, pandas and the tests themselves again, which is most of its time.
test test-all test-keyed integration kills proof: export PYTHONDONTWRITEBYTECODE :=

$(SPARK_CLASSES): $(SPARK_HOME_OF_TESTS) | java
	@SPARK_HOME='$(CURDIR)/$<' PYTHON=$(BIN)/python infra/spark/class-archive $@ || test $$? = 3

$(SPARK_HOME_OF_TESTS): $(VENV)/.ready
	@PYTHON=$(BIN)/python infra/spark/home-without-archives $@

# Minutes the first time, which no test should spend; without Go their tests are skipped.
.PHONY: s3-servers
s3-servers:
	@for server in minio versitygw; do infra/s3/build $$server || test $$? = 3; done

# The same for Azurite, which npm brings.
.PHONY: azure-server
azure-server:
	@infra/azure/build || test $$? = 3

# The same for Hadoop's jars, which Maven brings.
.PHONY: hdfs-servers
hdfs-servers: setup
	@PYTHON=$(BIN)/python infra/hdfs/build || test $$? = 3

# The same for the jars of Delta and Iceberg.
.PHONY: table-jars
table-jars: setup
	@PYTHON=$(BIN)/python infra/tables/build > /dev/null || test $$? = 3

# The same for a broker's jars and those of Spark's connector.
.PHONY: kafka-servers
kafka-servers: setup
	@PYTHON=$(BIN)/python infra/kafka/build || test $$? = 3
	@PYTHON=$(BIN)/python infra/kafka/jars > /dev/null || test $$? = 3

# Not installed from here, which takes a root: its tests are skipped without.
.PHONY: browser
browser:
	@command -v "$${CHROMIUM:-chromium}" chromium-browser google-chrome google-chrome-stable >/dev/null || { \
	  echo 'the tests of the report page and of the site are skipped: they need a Chromium. To have one:' >&2; \
	  echo '  Debian          sudo apt-get install chromium' >&2; \
	  echo '  Fedora          sudo dnf install chromium' >&2; \
	  echo '  elsewhere       CHROMIUM=/path/to/chrome make integration' >&2; }

.PHONY: lint
lint: setup ## ruff: rules and format; imports; names without a use; words; private names in tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=. $(BIN)/lint-imports
	$(BIN)/python infra/checks/unused_names.py
	$(BIN)/python infra/checks/wording.py
	$(BIN)/python infra/checks/tests_use_public_names.py

.PHONY: types
types: setup ## mypy, strict
	$(BIN)/mypy

.PHONY: bench
bench: setup java ## a micro-batch and a row, with Holdfast, with Spark's own state, without state; ARGS="--rounds 3"
	$(BIN)/python -m benchmarks.spark $(ARGS)

.PHONY: bench-files
bench-files: setup ## state files and metadata against raw writes and Flink; ARGS="--flink-jars DIR"
	$(BIN)/python -m benchmarks.state_files $(ARGS)

.PHONY: bench-s3
bench-s3: setup ## S3 against s3fs, pyarrow and s3transfer; ARGS="--server minio"
	$(BIN)/python -m benchmarks.s3 $(ARGS)

# Away from what Holdfast depends on; with other versions of fsspec.
build/bench-clouds/.ready: | setup $(UV)
	$(UV) pip install --quiet --python $(BIN)/python --target $(@D) gcsfs adlfs
	touch $@

.PHONY: bench-clouds
bench-clouds: setup azure-server build/bench-clouds/.ready ## Google Cloud Storage and Azure against gcsfs, adlfs and obstore; ARGS="--cloud gcs"
	PYTHONPATH=tests:build/bench-clouds $(BIN)/python -m benchmarks.clouds $(ARGS)

.PHONY: bench-hdfs
bench-hdfs: setup java ## HDFS against hdfs-native and Hadoop's own client; ARGS="--rounds 10"
	$(BIN)/python -m benchmarks.hdfs $(ARGS)

.PHONY: bench-flink
bench-flink: setup java flink-libraries ## operator state against Flink's own backend, needs a JDK; ARGS="--rounds 3"
	$(BIN)/python -m benchmarks.operator_state --flink-jars "$(FLINK_LIBRARIES)" $(ARGS)

.PHONY: bench-flink-savepoints
bench-flink-savepoints: setup ## speed and memory of reading, importing and exporting Flink savepoints; ARGS="--entries 5000000"
	$(BIN)/python -m benchmarks.flink_savepoints $(ARGS)

.PHONY: bench-keyed
bench-keyed: setup java flink-libraries ## keyed state against RocksDB, a dict and Flink's backends, needs a JDK; ARGS="--only batches --keys 1k"
	$(BIN)/python -m benchmarks.keyed --flink-jars "$(FLINK_LIBRARIES)" $(ARGS)

.PHONY: bench-restore
bench-restore: setup ## a restarted job's restore against a plain read of its files; ARGS="--mebibytes 256"
	$(BIN)/python -m benchmarks.restore $(ARGS)

# A Python package of 330 MB, away from what Holdfast depends on. It is there whole or not at all.
.PHONY: flink-libraries
flink-libraries: setup | $(UV)
	@test -d "$(FLINK_LIBRARIES)" || { \
	  echo 'fetching the jars of Flink once, 330 MB' >&2; \
	  mkdir -p "$(dir $(FLINK_LIBRARIES))"; \
	  new=$$(mktemp -d "$(FLINK_LIBRARIES).XXXXXX"); \
	  trap 'rm -rf "$$new"' EXIT; \
	  $(UV) pip install --quiet --no-cache --no-deps --python $(BIN)/python --target "$$new/whole" \
	    apache-flink-libraries==$(FLINK_VERSION); \
	  mv "$$new/whole" "$(FLINK_LIBRARIES)"; }

.PHONY: docs
docs: setup ## write the pages and pictures that are made from code
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.pictures
	$(BIN)/python infra/checks/folder_map.py

# Warnings are errors: links and anchors that lead nowhere, pages that are not in mkdocs.yml. The
# variable keeps a notice about MkDocs' next version out of the output.
.PHONY: site
site: setup ## build the site of docs/ into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel is built from the source archive, so an archive that lacks a file fails here.
TAG ?=
.PHONY: dist
dist: | $(UV) ## build the source archive and the wheel into build/dist; TAG=v1.2.3 must be their version
	rm -rf build/dist
	$(UV) build --quiet --python "$$(command -v $(PYTHON))" --out-dir build/dist
	@$(if $(TAG),test -e "build/dist/holdfast-$(TAG:v%=%)-py3-none-any.whl" || { \
	  echo 'the tag $(TAG) is not the version in pyproject.toml; built: ' build/dist/*.whl >&2; exit 1; })

# An environment of the lock with the wheel instead of the checkout. Tests and their folders come from the checkout, `holdfast` doesn't.
WHEEL := build/wheel
WHEEL_TESTS := tests/backends tests/locations tests/flink tests/cli tests/spark/test_stateful.py
.PHONY: test-dist
test-dist: export HYPOTHESIS_PROFILE ?= quick
test-dist: export PYTHONDONTWRITEBYTECODE :=
test-dist: export PYSPARK_PYTHON := $(CURDIR)/$(WHEEL)/bin/python
test-dist: export PATH := $(CURDIR)/$(WHEEL)/bin:$(PATH)
test-dist: java | $(UV) ## tests of the wheel in build/dist, in a fresh environment; PYTHON=python3.13 for another Python
	@ls build/dist/holdfast-*.whl > /dev/null || { echo 'run `make dist` first' >&2; exit 1; }
	rm -rf $(WHEEL)
	$(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(WHEEL)
	$(UV) pip sync --quiet --compile-bytecode --python $(WHEEL)/bin/python --require-hashes requirements.lock
	$(UV) pip install --quiet --python $(WHEEL)/bin/python --no-deps build/dist/holdfast-*.whl
	$(UV) pip check --quiet --python $(WHEEL)/bin/python
	$(WHEEL)/bin/python -c 'import holdfast; assert "site-packages" in holdfast.__file__, holdfast.__file__'
	$(WHEEL)/bin/pytest $(IN_PARALLEL) auto --maxprocesses 3 -m "not exhaustive" $(or $(TESTS),$(WHEEL_TESTS)) $(ARGS)

# The newest PySpark that Kafka, Delta and Iceberg exist for.
REFERENCE := 4.1

# Without `connect`, whose lowest PySpark is not that of `spark`.
EXTRAS_OF_LOWEST := fsspec s3 obstore gcs azure hdfs kafka spark rocksdb sketches report serve metrics

.PHONY: lock
lock: $(UV) ## resolve pyproject.toml into requirements.lock and requirements-lowest.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-header --all-extras --group dev --upgrade --constraint <(echo 'pyspark==$(REFERENCE).*') pyproject.toml \
	  -o requirements.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-header $(patsubst %,--extra %,$(EXTRAS_OF_LOWEST)) --resolution lowest-direct --upgrade pyproject.toml \
	  -o requirements-lowest.lock

.PHONY: clean
clean: ## remove the environment and everything built
	rm -rf $(VENV) .tools build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.PHONY: setup
setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Holdfast needs Python 3.11 or newer; name one with PYTHON=/path/to/python' >&2; exit 1; }
	test -x $(BIN)/python || $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV)
	$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable . --config-settings editable_mode=compat
	touch $@

.tools/bin/uv:
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install --quiet --disable-pip-version-check uv

.PHONY: java
java:
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" >/dev/null || { \
	  echo 'Spark needs Java 17 or newer, and no java was found. Install one, then run this again:' >&2; \
	  echo '  Debian, Ubuntu  sudo apt-get install openjdk-17-jre-headless' >&2; \
	  echo '  Fedora          sudo dnf install java-17-openjdk-headless' >&2; \
	  echo '  macOS           brew install openjdk@17' >&2; \
	  echo 'or set JAVA_HOME to where it is.' >&2; exit 1; }
