# Everything runs in .venv, which `setup` makes and renews when pyproject.toml or requirements.lock change.
# Variables: SEEDS=0..9999 (sim)  RUNS=50 SEED=7 (kill, oracle, hunt, chaos)  MINUTES=30 (soak)  N=1000 SEED=0 (generate, fuzz, changes)  PYTHON=/path/to/python3.12  TESTS=tests/unit  ARGS="options for the command behind the target"

ROOT := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
READY := $(ROOT)/.venv/.penstock-ready
IN_ROOT := cd "$(ROOT)" &&
TESTS ?= tests
# Two processes: one has all tests on Spark, which share a session, while the other has the rest, file by file.
JOBS ?= 2
AT_ONCE := $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --no-loadscope-reorder)
export PYTHON

.DEFAULT_GOAL := help
.PHONY: interop-lakes lake-faults commit-faults help setup java demo test test-slow test-spark lint format bench nexmark kill matrix oracle hunt chaos soak kafka cluster interop interrupts clean sim mutants generate generate-spark browser fuzz docs notebook prometheus changes

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' "$(ROOT)/Makefile"

setup: $(READY) ## make .venv with the pinned dependencies and this package in it

$(READY): $(ROOT)/pyproject.toml $(ROOT)/requirements.lock $(ROOT)/scripts/bootstrap.sh
	@$(IN_ROOT) sh scripts/bootstrap.sh venv
	@touch $@

java: ## find Java 17+, or install it where apt can
	@$(IN_ROOT) sh scripts/bootstrap.sh java

demo: java setup ## crash, recover at another parallelism, count every row (about two minutes)
	@$(IN_ROOT) .venv/bin/penstock demo $(ARGS)

test: java setup ## all tests but the slow ones; TESTS=tests/unit for a part, JOBS=1 one after the other
	@$(IN_ROOT) .venv/bin/python -m pytest -q -m "not slow" $(AT_ONCE) $(TESTS) $(ARGS)

test-slow: java setup ## the slow tests only
	@$(IN_ROOT) .venv/bin/python -m pytest -q -m slow $(TESTS) $(ARGS)

test-spark: java ## the tests on Spark with another version of it, in a venv of its own: SPARK=4.1, TESTS=tests/spark
	@$(IN_ROOT) sh scripts/bootstrap.sh spark "$(or $(SPARK),4.1)"
	@# PySpark 4.1 leaves sockets of its own open, which the interpreter then warns about.
	@$(IN_ROOT) ".venv-spark-$(or $(SPARK),4.1)/bin/python" -m pytest -q -m "not slow" -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning $(if $(filter tests,$(TESTS)),tests/spark tests/unit/spark,$(TESTS)) $(ARGS)

lint: setup ## ruff and mypy
	@$(IN_ROOT) .venv/bin/ruff check --quiet . && .venv/bin/ruff format --check --quiet .
	@$(IN_ROOT) .venv/bin/mypy --no-error-summary

format: setup ## let ruff lay out the code
	@$(IN_ROOT) .venv/bin/ruff format . && .venv/bin/ruff check --fix --select I .

bench: java setup ## the figures of docs/performance.md; ARGS=barrier for one of them
	@$(IN_ROOT) .venv/bin/python -m benchmarks $(ARGS)

nexmark: java setup ## the Nexmark-like examples against Spark SQL; ARGS="q1 q6" for some of them
	@$(IN_ROOT) .venv/bin/python -m examples.nexmark $(ARGS)

kill: java setup ## SIGKILL driver and workers at 50 random moments each, compare the table with the input
	@$(IN_ROOT) .venv/bin/python -m benchmarks.kill $(or $(RUNS),50) $(SEED)

matrix: java setup ## every shape and rescale of the matrix on Spark; ARGS="--only union" for one shape
	@$(IN_ROOT) .venv/bin/python -m tests.spark.matrix $(ARGS)

oracle: java setup ## every operator on Spark against Spark SQL, with failures and rescaling: RUNS=10 SEED=1
	@$(IN_ROOT) .venv/bin/python -m tests.spark.oracle_run --runs $(or $(RUNS),10) --seed $(or $(SEED),1) $(ARGS)

hunt: java setup ## look for lost records under contention: RUNS=300 TALLY=/tmp/hunt.jsonl
	@$(IN_ROOT) .venv/bin/python -m tests.spark.hunt --runs $(or $(RUNS),300) --seed $(or $(SEED),1) $(if $(TALLY),--tally $(TALLY)) $(ARGS)

chaos: java setup ## random pipelines under random faults on Spark: RUNS=100, or ARGS="--seed 7" for one
	@$(IN_ROOT) .venv/bin/python -m tests.chaos --runs $(or $(RUNS),100) $(if $(SEED),--first $(SEED)) $(ARGS)

soak: java setup ## one pipeline under steady load with faults, nothing may grow: MINUTES=30
	@$(IN_ROOT) .venv/bin/python -m tests.chaos.soak --minutes $(or $(MINUTES),30) $(ARGS)

kafka: java setup ## Spark's Kafka source against a real broker: ARGS="growth --outage 120", KAFKA_JARS=/folder/with/connector
	@$(IN_ROOT) .venv/bin/python -c "import confluent_kafka" 2>/dev/null || .venv/bin/python -m pip install --quiet "confluent-kafka>=2.6,<3"
	@$(IN_ROOT) $(if $(KAFKA_JARS),KAFKA_JARS="$(KAFKA_JARS)") .venv/bin/python -m tests.kafka $(ARGS)

interrupts: java setup ## Ctrl-C, Ctrl-C twice and SIGTERM in a terminal, on Spark with a Paimon table: RUNS=20 SEED=7
	@$(IN_ROOT) .venv/bin/python -m tests.spark.interrupts --runs $(or $(RUNS),20) $(if $(SEED),--seed $(SEED)) $(ARGS)

cluster: java setup ## the demo through spark-submit on a master and two workers; a worker and the driver are killed: SEED=7
	@$(IN_ROOT) .venv/bin/python -m tests.cluster $(if $(SEED),--seed $(SEED)) $(ARGS)
changes: java setup ## changes of programs on Spark, alone and in pairs, killed in the first epoch after: N=60 SEED=1, or ARGS='--only "renamed"'
	@$(IN_ROOT) .venv/bin/python -m tests.spark.changes --count $(or $(N),60) --seed $(or $(SEED),1) $(ARGS)

interop: java setup ## Java Paimon reads and compacts tables that Penstock wrote; its jars come by mvn; ARGS=java_finds_nan for one
	@$(IN_ROOT) .venv/bin/python -m tests.interop $(ARGS)

sim: setup ## whole runs under faults, without Spark, from seeds; SEEDS=0..9999, or ARGS="--seed 7 --trace" for one
	@$(IN_ROOT) .venv/bin/python -m penstock.testing.simulate --seeds $(or $(SEEDS),0..999) $(ARGS)

crowd: setup ## a simulated query of 10,240 subtasks under faults, 50 epochs: SEED=1, or ARGS="--subtasks 100 --max-parallelism 256"
	@$(IN_ROOT) .venv/bin/python -m penstock.testing.simulate.crowd --seed $(or $(SEED),1) $(ARGS)

scale: setup ## what the driver does in an epoch, for 16 to 10,240 subtasks; ARGS="1024 2048" for some of them
	@$(IN_ROOT) .venv/bin/python -m benchmarks.scale $(ARGS)

interop-lakes: java setup ## Delta and Iceberg tables read by Java (jars from Maven Central); ARGS=--kills kills drivers, too
	@$(IN_ROOT) .venv/bin/python -m tests.interop_lakes $(ARGS)

lake-faults: setup ## drivers that crash, hang and race on Delta and Iceberg tables: N=300 SEED=1
	@$(IN_ROOT) .venv/bin/python -m tests.sinks.lake_faults --seeds $(or $(N),300) $(if $(SEED),--first $(SEED)) $(ARGS)

commit-faults: setup ## the same on tables in memory and on Paimon tables: N=5000 TABLES=300 SEED=1
	@$(IN_ROOT) .venv/bin/python -m tests.sinks.commit_faults --seeds $(or $(N),5000) --paimon $(or $(TABLES),300) $(if $(SEED),--first $(SEED)) $(ARGS)

generate: setup ## random pipelines against DuckDB, without Spark, from seeds: N=20000 SEED=0, or ARGS="--only 7" for one
	@$(IN_ROOT) .venv/bin/python -m tests.generated --count $(or $(N),1000) --seed $(or $(SEED),0) $(ARGS)

generate-spark: java setup ## the same on Spark, one after the other: N=200 SEED=0
	@$(IN_ROOT) .venv/bin/python -m tests.generated --spark --count $(or $(N),20) --seed $(or $(SEED),0) $(ARGS)

mutants: setup ## faults in our own code, each must be noticed by the simulator or by a test; ARGS=live-first for one
	@$(IN_ROOT) .venv/bin/python -m tests.sim.hunting $(ARGS)

browser: setup ## install Chromium where apt can, and test the page in it
	@$(IN_ROOT) command -v chromium >/dev/null || apt-get install -y chromium
	@$(IN_ROOT) .venv/bin/python -m pytest -q tests/browser $(ARGS)

notebook: setup ## show a query in a real Jupyter kernel, in an environment of its own
	@$(IN_ROOT) .venv/bin/python -m tests.notebook

prometheus: setup ## install Prometheus where apt can, and test metrics, dashboard and alerts with it
	@$(IN_ROOT) command -v promtool >/dev/null || apt-get install -y prometheus
	@$(IN_ROOT) .venv/bin/python -m pytest -q tests/unit/observe/test_prometheus.py $(ARGS)

fuzz: setup ## damaged and forged folders and tables: N=50000 SEED=1
	@$(IN_ROOT) .venv/bin/python -m tests.fuzz --cases $(or $(N),2000) --first $(or $(SEED),0) $(ARGS)

.PHONY: package
package: java setup ## from an empty venv to committed rows by the README alone: ARGS="--python python3.12 --python python3.13"
	@$(IN_ROOT) .venv/bin/python -m tests.package $(ARGS)

docs: setup ## the documentation as a site, into site/
	@$(IN_ROOT) .venv/bin/mkdocs build --strict --quiet && echo "open site/index.html"

clean: ## remove .venv, caches and what runs left behind
	@$(IN_ROOT) rm -rf .venv .venv-spark-* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site artifacts spark-warehouse \
		metastore_db derby.log
	@$(IN_ROOT) find . -name __pycache__ -type d -prune -exec rm -rf {} +
