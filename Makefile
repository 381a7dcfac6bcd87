# Targets share the virtualenv in .venv; each installs what it needs once.
# A stamp is remade when the declared dependencies change.

PYTHON ?= python3
MODEL_DIR ?= runs/digits
FLAGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
PIP_INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
# Two installations into one virtualenv at the same time break it.
.NOTPARALLEL:
.PHONY: help demo test test-all test-oldest clean

help:
	@echo 'make demo         train and evaluate on the digits, in $(MODEL_DIR) (again: resumes)'
	@echo 'make test         lint and the tests of next/, the tree that replaces this one'
	@echo 'make test-all     its slow tests: kill loops, large matrices'
	@echo 'make test-oldest  its main tests on the oldest supported TensorFlow'
	@echo 'make clean        remove .venv, runs/ and caches'
	@echo
	@echo 'PYTHON=python3.12 picks the interpreter of a new .venv;'
	@echo "FLAGS='--gin.TRAIN_STEPS=500' is added to the demo."

demo: $(VENV)/.demo-installed
	$(RUN) -m pipeline.main --gin_file=gin/digits.gin --model_dir=$(MODEL_DIR) $(FLAGS)

test test-all test-oldest:
	$(MAKE) -C next $@ PYTHON=$(PYTHON)

clean:
	$(MAKE) -C next clean
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The target is pip, not python: where Debian lacks python3-venv, a failed attempt
# leaves python behind without pip.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	(3, 11) <= v < (3, 14) or sys.exit("make: $(PYTHON) is Python %d.%d; \
	3.11 to 3.13 is needed: make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.%-installed: setup.cfg setup.py pyproject.toml | $(VENV)/bin/pip
	@echo 'installing gin-estimator[$*] into $(VENV) (the first time about 1 GB, minutes)'
	@$(PIP_INSTALL) --editable '.[$*]'
	@touch $@
