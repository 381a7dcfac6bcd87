# Each target installs what it needs once. A changed setup.cfg or pyproject.toml installs again.

PYTHON ?= python3
MODEL_DIR ?= runs/digits
FLAGS ?=
PYTEST_FLAGS ?=

VENV := .venv
OLDEST := .venv-oldest
NEWEST := .venv-newest
DOCS := .venv-docs
EMPTY := .venv-empty
INSTALL := bin/pip install --quiet --disable-pip-version-check
PYTEST := -m pytest -n 2 --dist loadfile -q $(PYTEST_FLAGS)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PRECIOUS: %/bin/pip
.PHONY: help demo lint test test-all test-oldest test-newest test-dist docs dist format clean

help:
	@echo 'make demo         train, evaluate and export the digits in $(MODEL_DIR); again: resume'
	@echo 'make docs         the site of docs/ in build/site; installs no TensorFlow'
	@echo 'make test         lint and the tests, about 10 minutes on two cores'
	@echo 'make test-all     the slow tests: kill loops, large matrices'
	@echo 'make test-oldest  the main tests on the oldest supported TensorFlow and Keras'
	@echo 'make test-newest  the same tests on the newest ones that pip finds, pre-releases too'
	@echo 'make dist         build the distributions in dist/, and check them'
	@echo 'make test-dist    install the wheel in an empty environment: demo, launch, sweep'
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

# Versions beyond the bounds of pyproject.toml: pip warns of them. A pre-release of TensorFlow brings
# keras-nightly, in the same folder as keras.
test-newest: $(NEWEST)/.installed
	$(NEWEST)/$(INSTALL) --pre --upgrade tensorflow keras
	@$(NEWEST)/bin/python -c 'import keras, tensorflow; print(tensorflow.__version__, keras.__version__)'
	$(NEWEST)/bin/python $(PYTEST) -m oldest

# build/docs has the package and its folders under the names of an installation.
docs: $(DOCS)/.installed
	rm -rf build/docs && mkdir -p build/docs/gin_estimator
	ln -s $(CURDIR)/pipeline/* $(CURDIR)/models $(CURDIR)/inputs build/docs/gin_estimator
	PATH=$(CURDIR)/$(DOCS)/bin:$$PATH NO_MKDOCS_2_WARNING=1 mkdocs build --strict

dist: $(VENV)/.test-installed
	rm -rf dist
	$(VENV)/bin/python -m build
	$(VENV)/bin/twine check --strict dist/*

# What a user does after `pip install`, in an empty folder. PYTHON chooses the interpreter.
test-dist: dist
	rm -rf $(EMPTY)
	$(PYTHON) -m venv $(EMPTY)
	$(EMPTY)/$(INSTALL) "$$(echo dist/*.whl)[demo,sweep]"
	cd "$$(mktemp -d)" && PATH="$(CURDIR)/$(EMPTY)/bin:$$PATH" && set -ex && \
	gin-estimator --version && \
	gin-estimator --gin_file=digits.gin --model_dir=demo && \
	gin-estimator launch --workers=2 -- \
	    --gin_file=digits.gin --model_dir=workers --gin.TRAIN_STEPS=200 && \
	gin-estimator sweep --trials=2 --metric=accuracy --sweep_dir=sweep \
	    --search="LEARNING_RATE=log(1e-4, 1e-1)" -- --gin_file=digits.gin --gin.TRAIN_STEPS=200
	rm -rf $(EMPTY)

format: $(VENV)/.test-installed
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) $(DOCS) $(EMPTY) runs build dist *.egg-info .pytest_cache .ruff_cache

# The target is pip: without python3-venv, Debian leaves a python behind that has no pip.
%/bin/pip:
	$(PYTHON) -m venv $*

# Extras are for users as well; the tools of a checkout are in groups, which need pip 25.1.
$(VENV)/.%-installed: WHAT = '.[$*]'
$(VENV)/.test-installed: WHAT = '.[all]' --group dev
$(VENV)/.%-installed: setup.cfg pyproject.toml | $(VENV)/bin/pip
	@echo 'installing $* into $(VENV): 2.5 GB the first time, 3.2 GB for tests'
	@$(VENV)/$(INSTALL) 'pip>=25.1'
	@$(VENV)/$(INSTALL) --editable $(WHAT)
	@touch $@

$(OLDEST)/.installed: setup.cfg pyproject.toml | $(OLDEST)/bin/pip
	@echo 'installing the oldest supported versions into $(OLDEST)'
	@$(OLDEST)/$(INSTALL) 'pip>=25.1'
	@$(OLDEST)/$(INSTALL) --editable '.[demo,sweep]' --group test \
	    'tensorflow==2.16.*' 'keras==3.6.*'
	@touch $@

$(NEWEST)/.installed: setup.cfg pyproject.toml | $(NEWEST)/bin/pip
	@echo 'installing gin-estimator into $(NEWEST)'
	@$(NEWEST)/$(INSTALL) 'pip>=25.1'
	@$(NEWEST)/$(INSTALL) --editable '.[demo,sweep]' --group test
	@touch $@

$(DOCS)/.installed: docs/requirements.txt | $(DOCS)/bin/pip
	@echo 'installing mkdocs into $(DOCS): 200 MB'
	@$(DOCS)/$(INSTALL) --requirement $<
	@touch $@
