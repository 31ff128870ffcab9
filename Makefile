# Two commands matter: `make serve` and `make test`. Both need only Python 3.11
# or newer with pip, and make. An up-to-date .venv is used again: its stamp files
# are as old as the pyproject.toml they were installed from.

PYTHON ?= python3
VENV ?= .venv
HOST ?= 127.0.0.1
PORT ?= 8000
DEVICES ?=
MODELS ?= models
# `make serve COMPILE=0` leaves the hot path as plain Python.
COMPILE ?= 1
# `make serve LOCKED=0` takes other versions than those in requirements/.
LOCKED ?= 1
BENCH ?=
# Four processes share the test files, also where there are two cores: half of the time
# tests wait for servers and for time limits. `make test PARALLEL=` runs one test after
# the other.
PARALLEL ?= -n 4 --dist loadfile --no-loadscope-reorder
# A part of the tests, for those that run all otherwise: TESTS=tests/app/http
TESTS ?=
# `make test` leaves to the other runs of `make test-all` what loads processes for seconds.
quick := -m "not stress"
# Other Pythons than that of `make test`; those that are not here are left out.
PYTHONS ?= python3.12 python3.13 python3.14

bin := $(VENV)/bin
lowest := $(VENV)-lowest
core_tests := tests/popef_io tests/engine tests/app tests/popgate
# Setuptools warns of every editable install.
pip := PYTHONWARNINGS=ignore $(bin)/python -m pip --disable-pip-version-check
example := examples/digits/digits.onnx

.PHONY: help serve compiled test test-compiled test-lowest coverage check style format bench \
	test-all test-core test-python test-pythons conformance fuzz soak chaos many-models embedded test-ray test-buckets test-mpi test-text image \
	pin-image lock sbom audit docs clean

help:
	@echo "make serve          compile the example model and serve it on $(HOST):$(PORT) (PORT=8080)"
	@echo "make compiled       compile the hot path: saves 33 to 44 % of the time, needs a C compiler"
	@echo "make test           everything CI runs: ruff, mypy, pytest"
	@echo "make check          ruff and mypy only (changes nothing)"
	@echo "make format         let ruff format and fix the sources"
	@echo "make test-compiled  the same tests, with the hot path compiled"
	@echo "make test-lowest    the same tests, with the lowest versions of all dependencies"
	@echo "make test-core      the tests of the core, without a plugin"
	@echo "make test-pythons   the same tests with other Pythons (PYTHONS='python3.12 python3.13')"
	@echo "make test-all       what a release passes: all of these, coverage and stress"
	@echo "make test-ray       PopGate on a Ray cluster of this machine (installs Ray)"
	@echo "make test-mpi       PopXL programs over MPI (installs it)"
	@echo "make test-buckets   models from servers of S3, GCS, Azure, OCI and a hub (installs them)"
	@echo "make test-text      text models beside sentence-transformers and stock clients (installs them)"
	@echo "make coverage       the same tests, and which branches they take; a floor is held"
	@echo "make bench          gateway against reference server (BENCH='--seconds 1')"
	@echo "make conformance    every ONNX backend test over HTTP"
	@echo "make fuzz           requests made from the OpenAPI document, damaged messages"
	@echo "make soak           64 clients, mixed models and encodings"
	@echo "make chaos          kill and stop processes under load"
	@echo "make many-models    1, 100 and 500 models in one gateway"
	@echo "make embedded       ModelRunner beside ONNX Runtime in the same process"
	@echo "make image          build the container image; without docker or podman in a folder"
	@echo "make pin-image      write the digest of the base image into the Dockerfile"
	@echo "make lock           renew the locked dependencies in requirements/"
	@echo "make sbom           list the locked dependencies as CycloneDX: dist/popgate.cdx.json"
	@echo "make audit          look for known vulnerabilities of them (needs the network)"
	@echo "make docs           build the site of the documentation: build/site/index.html"
	@echo "make clean          remove .venv, the compiled example and caches"

serve: $(VENV)/.installed $(MODELS)/digits.popef
	$(bin)/python -m native.serve --url http://$(HOST):$(PORT)$(if $(filter 0,$(COMPILE)), --no-compile) -- \
		-m $(MODELS) --host $(HOST) --port $(PORT) --trust-loopback$(if $(DEVICES), --devices $(DEVICES))

$(MODELS)/digits.popef: $(example) $(VENV)/.installed
	@mkdir -p $(MODELS)
	$(bin)/popgate compile $(example) -o $@

# Each start of a server, and each of the hundreds of processes of the tests, would compile
# all sources anew where the environment forbids Python to keep what it has compiled.
serve test test-compiled test-core test-lowest test-python coverage: export PYTHONDONTWRITEBYTECODE =

# What fails while four processes crowd the cores is run once more alone, and has to pass
# there: the run names it in both cases.
# mypy takes one core: on the other all that tests import is compiled, which in a fresh
# environment each of the four would do, as they would ask Python for each character whether
# it can be encoded. The tests begin then, while mypy still runs. What mypy says is printed
# behind them, and an error fails the whole.
test: style
	@mkdir -p build
	@$(bin)/mypy > build/types.txt 2>&1 & types=$$!; \
	{ $(bin)/python -m pytest -q --collect-only $(TESTS); \
		$(bin)/python -c 'from hypothesis.internal import charmap; \
			charmap.charmap(); charmap.intervals_from_codec("utf-8")'; } > /dev/null 2>&1; \
	$(bin)/python -m pytest $(PARALLEL) $(quick) $(TESTS) || { test $$? = 1 && \
		echo "make test: what failed runs once more, alone" && \
		$(bin)/python -m pytest $(quick) --last-failed --last-failed-no-failures none -x $(TESTS); }; \
	tests=$$?; wait $$types; types=$$?; cat build/types.txt; \
	test $$tests = 0 -a $$types = 0 || { \
		echo "make test: pytest ended with $$tests, mypy with $$types"; exit 1; }

check: style
	$(bin)/mypy

style: $(VENV)/.installed-dev
	$(bin)/ruff check .
	$(bin)/ruff format --check .

format: $(VENV)/.installed-dev
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

# Compiled where it can be, as the wheels are; says so where it cannot.
compiled: $(VENV)/.installed
	$(bin)/python -m native.build

test-compiled: $(VENV)/.installed-dev compiled
	$(bin)/python -m pytest $(PARALLEL)

# As warnings of old versions of others are not ours, they are no errors here.
test-lowest: $(lowest)/.installed
	$(lowest)/bin/python -m pytest $(PARALLEL) -W default $(TESTS)

# The core alone is installed in build/core: no plugin can be imported or found. What
# setuptools leaves in the source tree names the entry points of all plugins.
test-core: $(VENV)/.installed-dev
	rm -rf popgate.egg-info
	$(bin)/python -m native.core_alone build/core
	build/core/bin/python -m pytest $(PARALLEL) -p no:cacheprovider $(or $(TESTS),$(core_tests))

# Each in an environment of its own: .venv-python3.13
test-pythons:
	for python in $(PYTHONS); do \
		if $$python -c '' 2> /dev/null; then \
			$(MAKE) --no-print-directory test-python PYTHON=$$python VENV=$(VENV)-$$python || exit 1; \
		else \
			echo "make test-pythons: there is no $$python here; it is left out"; \
		fi; \
	done

test-python: $(VENV)/.installed-dev
	$(bin)/python -m pytest $(PARALLEL) $(TESTS)

# What a release passes (RELEASE.md); hours, so not part of CI. What is compiled comes
# last, as it stays.
test-all:
	$(MAKE) test
	$(MAKE) test-core
	$(MAKE) coverage
	$(MAKE) test-lowest
	$(MAKE) test-pythons
	$(MAKE) test-compiled
	$(MAKE) fuzz soak chaos many-models conformance

# Not part of `make test`, which skips it without the extra: Ray takes 400 MB.
test-ray: $(VENV)/.installed-dev
	$(pip) install -q --no-compile -e '.[ray]'
	$(bin)/python -m pytest plugins/ray/tests

test-mpi: $(VENV)/.installed-dev
	$(pip) install -q --no-compile -e '.[mpi]'
	$(bin)/python -m pytest plugins/popxl/tests/popir/instances/test_machines.py

# Azurite is npm's, the registry Debian's; where those are not, their tests are skipped.
test-buckets: $(VENV)/.installed-dev
	$(pip) install -q --no-compile -e '.[bucket-tests]'
	! command -v npm || npm install --silent --no-save --prefix build/azurite azurite@3.34.0
	mkdir -p build/registry
	! command -v apt-get || (cd build/registry && apt-get download -q docker-registry && dpkg -x docker-registry_*.deb .) || true
	$(bin)/python -m pytest plugins/remote/tests

# Vectors beside sentence-transformers' own, and the stock clients of others, each in an
# environment of its own: 3 GB, most of it torch. uv makes those in seconds.
text_clients := openai cohere litellm huggingface_hub langchain-openai llama-index-embeddings-openai
uv := build/tools/bin/uv
test-text: $(VENV)/.installed-dev build/text-folders/.installed \
		$(text_clients:%=build/text-clients/%/.installed)
	POPGATE_TEXT_FOLDERS=$(CURDIR)/build/text-folders/bin/python \
	POPGATE_TEXT_CLIENTS=$(CURDIR)/build/text-clients \
		$(bin)/python -m pytest $(or $(TESTS),plugins/text/tests)

build/text-folders/.installed: build/tools/.installed
	$(uv) venv -q --clear -p $(PYTHON) build/text-folders
	$(uv) pip install -q -p build/text-folders torch==2.13.0 sentence-transformers onnx onnxscript
	@touch $@

# huggingface_hub asks for numpy when it gives vectors.
build/text-clients/%/.installed: build/tools/.installed
	$(uv) venv -q --clear -p $(PYTHON) $(@D)
	$(uv) pip install -q -p $(@D) $* numpy
	@touch $@

# Not part of `make test`: counting branches costs four tenths of the processor time.
coverage: $(VENV)/.installed-dev
	rm -rf build/coverage
	$(bin)/coverage run -m pytest $(PARALLEL) $(TESTS)
	$(bin)/coverage combine -q
	$(bin)/coverage report

bench: $(VENV)/.installed-dev
	$(bin)/python -m native.build --if-possible
	$(bin)/python -m bench.compare $(BENCH)

conformance: $(VENV)/.installed-dev
	$(bin)/python -m bench.conformance $(BENCH)

fuzz: $(VENV)/.installed-dev
	$(bin)/python -m bench.fuzzers.messages
	$(bin)/python -m bench.fuzz $(BENCH)

soak: $(VENV)/.installed-dev
	$(bin)/python -m bench.soak $(BENCH)

chaos: $(VENV)/.installed-dev
	$(bin)/python -m bench.chaos $(BENCH)

many-models: $(VENV)/.installed-dev
	$(bin)/python -m bench.many_models $(BENCH)

embedded: $(VENV)/.installed-dev
	$(bin)/python -m bench.embedded $(BENCH)

# Without an engine the steps of the Dockerfile are performed in build/image.
image:
	$(PYTHON) -m native.image

# The tag stays beside the digest: update bots and the next pin read it.
pin-image:
	tag=$$(sed -n 's/^ARG BASE=\([^@]*\).*/\1/p' Dockerfile) && \
		digest=$$(docker buildx imagetools inspect $$tag --format '{{.Manifest.Digest}}') && \
		sed -i "s|^ARG BASE=.*|ARG BASE=$$tag@$$digest|" Dockerfile && grep ^ARG Dockerfile

build/tools/.installed:
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install -q 'uv>=0.9' 'cyclonedx-bom>=7,<8' 'pip-audit>=2.9,<3'
	@touch $@

# For each Python that is supported. No file names an index: pip's own settings do.
lock := build/tools/bin/uv pip compile -q --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url
lock: build/tools/.installed
	$(lock) pyproject.toml -o requirements/serve.txt
	$(lock) --extra compile -c requirements/serve.txt pyproject.toml -o requirements/build.txt
	echo pip | $(lock) - -o requirements/pip.txt
	$(lock) requirements/docs.in -o requirements/docs.txt

sbom: build/tools/.installed
	mkdir -p dist
	build/tools/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application \
		--output-reproducible --of JSON -o dist/popgate.cdx.json requirements/serve.txt

audit: build/tools/.installed
	build/tools/bin/pip-audit --strict --require-hashes --disable-pip -r requirements/serve.txt
	build/tools/bin/pip-audit --strict --require-hashes --disable-pip -r requirements/build.txt
	build/tools/bin/pip-audit --strict --require-hashes --disable-pip -r requirements/pip.txt
	build/tools/bin/pip-audit --strict --require-hashes --disable-pip -r requirements/docs.txt

# Needs the network once, for build/docs; then it works without.
docs: build/docs/.installed build/docs/mermaid.min.js
	PYTHONPATH=tests/docs build/docs/bin/python -m readability
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

build/docs/.installed: requirements/docs.txt
	$(PYTHON) -m venv build/docs
	build/docs/bin/python -m pip install -q --require-hashes -r requirements/docs.txt
	@touch $@

# Scripts alone, from packages of npm: diagrams, and search without a server.
build/docs/mermaid.min.js: build/docs/.installed
	cd build/docs && npm pack --silent mermaid@11.17.2 iframe-worker@1.0.4 > packed.txt && \
		tar xzf mermaid-*.tgz -O package/dist/mermaid.min.js > mermaid.part && \
		tar xzf iframe-worker-*.tgz -O package/shim/index.js > iframe-worker.js && \
		mv mermaid.part mermaid.min.js && rm mermaid-*.tgz iframe-worker-*.tgz packed.txt

# The pip of `ensurepip` is installed only if the index has no other: with the locked one
# the first start takes half of the processor time.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "PopGate needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --disable-pip-version-check --python $(bin)/python install -q --no-compile \
		--require-hashes -r requirements/pip.txt 2> /dev/null || $(PYTHON) -m venv $(VENV)
	@touch $@

# What is imported is compiled to bytecode then: half of pip's processor time.
ifeq ($(LOCKED),0)
$(VENV)/.installed: pyproject.toml $(VENV)/.python
	$(pip) install -q --no-compile -e .
	@touch $@
else
$(VENV)/.installed: pyproject.toml requirements/build.txt $(VENV)/.python
	$(pip) install -q --no-compile --require-hashes -r requirements/build.txt || { \
		echo "make: the package index lacks a locked package; try LOCKED=0"; exit 1; }
	$(pip) install -q --no-deps --no-build-isolation -e .
	@touch $@
endif

# All at once; what of it is imported is compiled to bytecode then, the rest never.
$(VENV)/.installed-dev: pyproject.toml Makefile $(VENV)/.python
	$(pip) install -q --no-compile -e '.[dev,examples,frameworks,otel]'
	@touch $(VENV)/.installed $@

$(lowest)/.installed: pyproject.toml native/lowest.py
	$(PYTHON) -m venv $(lowest)
	$(PYTHON) -m native.lowest > $(lowest)/requirements.txt
	$(lowest)/bin/python -m pip install -q --no-compile -r $(lowest)/requirements.txt
	$(lowest)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-python* $(lowest) $(MODELS)/digits.popef build *.egg-info \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis
