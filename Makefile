# Each target installs what it needs once. A changed setup.cfg or pyproject.toml installs again.

PYTHON ?= python3
MODEL_DIR ?= runs/digits
FLAGS ?=
PYTEST_FLAGS ?=

VENV := .venv
DOCS := .venv-docs
OLDEST := .venv-oldest
NEWEST := .venv-newest
PYTEST := -m pytest -n 2 --dist loadfile -q $(PYTEST_FLAGS)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PRECIOUS: %/bin/pip
.PHONY: help demo lint test test-all test-oldest test-newest format clean

help:
	@echo 'make demo         train, evaluate and export the digits in $(MODEL_DIR); again: resume'
	@echo 'make docs         the site of docs/ in build/site; installs no TensorFlow'
	@echo 'make test         lint and the tests, about 5 minutes on two cores'
	@echo 'make test-all     the slow tests: kill loops, large matrices'
	@echo 'make test-oldest  the main tests on the oldest supported TensorFlow and Keras'
	@echo 'make test-newest  the same tests on the newest ones that pip finds, pre-releases too'
	@echo 'make format       format the code'
	@echo 'make clean        remove what make has made'
	@echo
	@echo 'PYTHON=python3.12 chooses the interpreter of a new .venv.'

demo: $(VENV)/.demo-installed
	$(VENV)/bin/gin-estimator --gin_file=gin/digits.gin --model_dir=$(MODEL_DIR) $(FLAGS)

lint: $(VENV)/.test-installed
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/pyright

test: lint
	$(VENV)/bin/python $(PYTEST) -m 'not slow'

test-all: $(VENV)/.test-installed
	$(VENV)/bin/python $(PYTEST) -m slow

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python $(PYTEST) -m oldest

# Versions beyond the bounds of setup.cfg: pip warns of them. A pre-release of TensorFlow brings
# keras-nightly, in the same folder as keras.
test-newest: $(NEWEST)/.installed
	$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --pre --upgrade tensorflow keras
	@$(NEWEST)/bin/python -c 'import keras, tensorflow; print(tensorflow.__version__, keras.__version__)'
	$(NEWEST)/bin/python $(PYTEST) -m oldest

format: $(VENV)/.test-installed
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

# build/docs has the package and its folders under the names of an installation.
.PHONY: docs
docs: $(DOCS)/.installed
	rm -rf build/docs && mkdir -p build/docs/gin_estimator
	ln -s $(CURDIR)/pipeline/* $(CURDIR)/models $(CURDIR)/inputs build/docs/gin_estimator
	PATH=$(CURDIR)/$(DOCS)/bin:$$PATH NO_MKDOCS_2_WARNING=1 mkdocs build --strict

$(DOCS)/.installed: docs/requirements.txt | $(DOCS)/bin/pip
	@echo 'installing mkdocs into $(DOCS): 200 MB'
	@$(DOCS)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

clean:
	rm -rf $(VENV) $(DOCS) $(OLDEST) $(NEWEST) runs build *.egg-info .pytest_cache .ruff_cache

# The target is pip: without python3-venv, Debian leaves a python behind that has no pip.
%/bin/pip:
	$(PYTHON) -m venv $*

$(VENV)/.%-installed: setup.cfg pyproject.toml | $(VENV)/bin/pip
	@echo 'installing gin-estimator[$*] into $(VENV): 2.5 GB the first time, 3.2 GB for tests'
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(OLDEST)/.installed: setup.cfg pyproject.toml | $(OLDEST)/bin/pip
	@echo 'installing the oldest supported versions into $(OLDEST)'
	@$(OLDEST)/bin/pip install --quiet --disable-pip-version-check \
	    --editable '.[oldest]' 'tensorflow==2.16.*' 'keras==3.6.*'
	@touch $@

$(NEWEST)/.installed: setup.cfg pyproject.toml | $(NEWEST)/bin/pip
	@echo 'installing gin-estimator into $(NEWEST)'
	@$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --editable '.[oldest]'
	@touch $@
