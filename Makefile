# Every target works on a fresh machine: it makes the environment in $(VENV) when that is missing or pyproject.toml has
# changed. Variables: BACKEND=tensorflow|jax|torch (demo: jax; test and bench: all), WORKERS (processes that test), PYTHON,
# VENV, PEERS, PYTEST_ARGS, CONSTRAINTS (a file for pip, with the versions to install).
PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
BACKEND ?=
WORKERS ?= 2
PYTEST_ARGS ?=
CONSTRAINTS ?=

# Tests start many processes, each of which would compile the source of noterl again.
unexport PYTHONDONTWRITEBYTECODE

# A file's tests stay in one process: they share agents. Files keep their order, in which the last ones are short.
# A crash ends the run: xdist would wait for ever for the tests of the process that crashed.
pytest := -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --max-worker-restart=0
known := tensorflow jax torch
comma := ,
ifneq ($(filter-out $(known),$(BACKEND)),)
$(error BACKEND must be one of $(known), not "$(BACKEND)")
endif
backends := $(or $(BACKEND),$(known))
demo_backend := $(or $(BACKEND),jax)

python := $(VENV)/bin/python
install := -m pip install --quiet --disable-pip-version-check --no-compile $(CONSTRAINTS:%=--constraint %)

# Frameworks come before noterl and its extras, so that the smaller build stays where there is one: tensorflow-cpu is
# built for some machines only, and a torch that is not pinned brings gigabytes of CUDA along.
package_tensorflow := $(if $(filter Linux-x86_64,$(shell uname -s -m | tr ' ' -)),tensorflow-cpu,tensorflow)
package_jax := jax
package_torch := torch$(if $(CONSTRAINTS),,==2.13.0)
resolve := $(python) -m uv --quiet pip compile --upgrade --all-extras --python-version 3.11 --no-header --no-annotate pyproject.toml
extras_tensorflow := classic-control
extras_jax := classic-control
extras_torch := classic-control
extras_docs := classic-control,docs
extras_dev := dev-all$(if $(CONSTRAINTS),$(comma)robotics)

# TensorFlow keeps each program that it compiled until its process ends, up to 10 GB in a run of all tests. So its tests
# run in parts, each in new processes. The micro benchmarks run on torch only.
parts_tensorflow := 'tests/[ab]*/' 'tests/[c-h]*/' 'tests/[i-u]*/ tests/test_*.py benchmarks/tests'
parts_jax := 'tests benchmarks/tests'

# XLA compiles for most of the time of TensorFlow's and JAX's tests. Its older kernels need a third less of the
# processor, and hold the same promises of equal bits. `make test XLA_FLAGS=` compiles as users' programs do, and so do
# test-oldest and test-newest. A version of XLA without these kernels ends a program that asks for them, here the short
# one that is tried first.
older_kernels := $(if $(CONSTRAINTS),,--xla_cpu_use_fusion_emitters=false)
compile_tensorflow := import tensorflow; tensorflow.function(tensorflow.zeros, jit_compile=True)([1])
compile_jax := import jax; jax.numpy.zeros(1)

.PHONY: demo check test test-oldest test-newest constraints test-faults lint type docs format bench peers wheel clean
.SECONDARY:
.NOTPARALLEL:

demo: $(VENV)/.installed-$(demo_backend)
	KERAS_BACKEND=$(demo_backend) $(python) examples/demo.py

# What a change needs before a commit: no test that takes more than five seconds, and few on a backend.
check: $(VENV)/.installed-torch lint type
	$(python) $(pytest) --backend-free -m "not slow" $(PYTEST_ARGS)
	KERAS_BACKEND=torch $(python) $(pytest) -m "fast and not backend_free" $(PYTEST_ARGS)

# Everything that CI runs.
test: lint type docs test-backend-free $(backends:%=test-%)

test-backend-free: $(VENV)/.installed-dev
	$(python) $(pytest) --backend-free $(PYTEST_ARGS)

test-%: $(VENV)/.installed-dev $(VENV)/.installed-%
	@# A part without a test for PYTEST_ARGS ends with the status 5.
	flags="$${XLA_FLAGS-$(if $(compile_$*),$(older_kernels))}"; \
	[ -z "$$flags" ] || XLA_FLAGS="$$flags" $(python) -c "$(compile_$*)" 2> /dev/null || flags=; \
	for part in $(or $(parts_$*),''); do \
	  KERAS_BACKEND=$* XLA_FLAGS="$$flags" $(python) $(pytest) -m "not backend_free" $(PYTEST_ARGS) $$part \
	    || [ $$? -eq 5 -a -n "$(PYTEST_ARGS)" ] || exit 1; \
	done

# The tests with the oldest versions that pyproject.toml allows, on Python 3.11, and with the newest.
test-oldest test-newest: test-%:
	$(MAKE) test-backend-free $(backends:%=test-%) VENV=$(VENV)-$* CONSTRAINTS=constraints/$*.txt

# Find these versions anew. PyTorch stays at the version that has a build without CUDA packages.
constraints: $(VENV)/.made
	$(python) $(install) uv
	$(resolve) --resolution lowest-direct --output-file constraints/oldest.txt constraints/cpu.in
	echo "$(package_torch)" | $(resolve) --universal --output-file constraints/newest.txt constraints/cpu.in -

# Damaged files of each kind; then the fault tests, three times, with 200 fits in one process and 200 interrupts of each kind
# of run; kills of each kind of run, in a process of their own, because the threads of torch do not survive a fork; and
# millions of rows. `python -m tests.faults.fuzz --minutes 10` reads damaged files
# for longer.
test-faults: $(VENV)/.installed-dev $(VENV)/.installed-torch
	KERAS_BACKEND=torch $(python) -m tests.faults.fuzz --minutes 0.5
	for repeat in 1 2 3; do \
	  NOTERL_FAULT_REPEATS=200 KERAS_BACKEND=torch $(python) -m pytest tests/integration/test_worker_leaks.py \
	    tests/collect/workers/test_lanes.py tests/collect/test_env_calls.py tests/collect/workers/test_shared_memory.py \
	    tests/integration/test_workers.py tests/collect/workers/test_overlap.py tests/integration/test_overlap.py \
	    tests/integration/test_interrupts.py tests/utils/test_processes.py $(PYTEST_ARGS) || exit 1; \
	  NOTERL_FAULT_REPEATS=200 KERAS_BACKEND=torch $(python) -m pytest tests/integration/test_kills.py \
	    $(PYTEST_ARGS) || exit 1; \
	done
	KERAS_BACKEND=torch $(python) -m benchmarks.pool --pairs 1 --parts ring weights

# The README's first program with the wheel and one framework, each in a fresh environment.
wheel: $(backends:%=wheel-%)

wheel-%: $(VENV)/.installed-dev
	rm -rf build dist $(VENV)-wheel
	$(PYTHON) -m venv $(VENV)-wheel
	$(python) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	$(VENV)-wheel/bin/python $(install) $(package_$*) "$$(echo dist/noterl-*.whl)[$*,classic-control]"
	$(VENV)-wheel/bin/python tests/packaging/first_program.py README.md
	rm -rf build dist $(VENV)-wheel

lint: $(VENV)/.installed-dev
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(VENV)/bin/lint-imports --no-cache

type: $(VENV)/.installed-dev
	$(python) -m mypy

# The site, in docs/_build/html. NOTERL_DOCS_ONLINE=1 links to Python, NumPy and gymnasium too, and needs the network.
docs: $(VENV)/.installed-docs $(VENV)/.installed-$(demo_backend)
	KERAS_BACKEND=$(demo_backend) $(python) -m sphinx -W --keep-going -q docs docs/_build/html

format: $(VENV)/.installed-dev
	$(python) -m ruff check --fix .
	$(python) -m ruff format .

bench: $(backends:%=bench-%)

bench-%: $(VENV)/.installed-dev $(VENV)/.installed-%
	KERAS_BACKEND=$* $(python) -m pytest benchmarks/micro --benchmark-enable $(PYTEST_ARGS)

# What benchmarks/compare.py compares with, in an environment of its own.
peers: $(PEERS)/.installed

$(PEERS)/.installed: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(install) $(package_torch) -r $<
	@touch $@

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-%: pyproject.toml | $(VENV)/.made
	$(python) $(install) $(package_$*) --editable '.[$(extras_$*)]'
	@touch $@

clean:
	rm -rf build dist docs/_build docs/_generated noterl.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
