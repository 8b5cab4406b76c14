# `make` lists the targets. Each builds .venv, with the versions in requirements.lock.

PYTHON ?= python3
DATA ?=
SEEDS ?= 1
SPLIT ?= full
PY = .venv/bin/python

.PHONY: help demo assignment study-positions study-nope study-grid study-clap bench test test-all lint clean clean-runs

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s%s\n", $$1, $$2 }' Makefile

SENTENCE = We will defend the central granary together before the first census.

demo: .venv/ready  ## train a small encoder, classifier and decoder, draw their attention
	$(PY) train_mlm.py --pos alibi --n-embd 128 --n-layer 2 --lr 1e-3 --init-std 0.05 --steps 600 \
		--out out/demo/encoder --overwrite
	$(PY) train_classifier.py --encoder out/demo/encoder --out out/demo/classifier --overwrite
	$(PY) train_lm.py --pos alibi --lr 3e-3 --out out/demo/lm --overwrite
	$(PY) attention_maps.py out/demo/encoder --text "$(SENTENCE)"
	$(PY) attention_maps.py out/demo/lm --text "$(SENTENCE)" --positions --html
	$(PY) sample.py out/demo/encoder --text "There is no [MASK] in a steady lamp."
	@echo "Open in out/demo: the figures and the page in lm/maps, lm/curve.png, classifier/confusion.png."
	@echo "To run the scripts yourself: source .venv/bin/activate, then python train_lm.py --pos nope"

assignment: .venv/ready  ## all parts, and report.html to hand in: DATA=path SEEDS=3 SPLIT=clean
	$(PY) -m studies.assignment --data $(or $(DATA),speeches) --seeds $(SEEDS) --split $(SPLIT) \
		--out out/assignment$(if $(filter clean,$(SPLIT)),-clean)

# An hour each, study-positions two. QUICK=1 takes minutes, FULL=1 is for a GPU.
STUDY = --size $(if $(QUICK),quick,$(if $(FULL),full,laptop)) $(if $(DATA),--data $(DATA))

study-nope: .venv/ready  ## how a decoder without positions learns the order of words: QUICK=1 DATA=path
	$(PY) -m studies.nope $(STUDY)

study-grid: .venv/ready  ## the same beside other encodings, by size and length: QUICK=1 DATA=path
	$(PY) -m studies.grid $(STUDY)

study-clap: .venv/ready  ## RoBERTa, ALiBi and CLAP compared by masked-LM perplexity: QUICK=1 DATA=path
	$(PY) -m studies.clap $(STUDY)

study-positions: .venv/ready  ## all position encodings on tasks and texts, also longer: QUICK=1 DATA=path LONG=path
	$(PY) -m studies.positions $(STUDY) $(if $(LONG),--long $(LONG))

figures: .venv/ready  ## redraw the pictures of the pages, twelve minutes of training: DATA=path
	$(PY) -m studies.pictures $(if $(DATA),--data $(DATA))

bench: .venv/ready-bench  ## speed and memory compared with other libraries: BENCH="--sizes small"
	$(PY) bench.py $(BENCH)

test: .venv/ready-test  ## the tests: three minutes on two cores
	$(PY) -m pytest -q -n 2 --dist loadfile -rs -m "not slow"

test-all: .venv/ready-test  ## all tests, as in CI
	$(PY) -m pytest -q -n 2 --dist loadfile -rs

lint: .venv/ready-test  ## ruff check and ruff format --check
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

clean:  ## delete the environment and caches; runs are kept
	rm -rf .venv .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-runs:  ## delete every run in out/, after asking
	@printf "Delete out/ with %s runs? [y/N] " "$$(find out -name config.json 2>/dev/null | wc -l)"; \
	read answer; if [ "$$answer" = y ]; then rm -rf out; else echo "Nothing deleted."; fi

# ---------------------------------------------------------------------------- the environment
# "ready" is written last, so an interrupted installation begins again.

.venv/ready: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "make: $(PYTHON) is older than Python 3.10; give PYTHON=python3.12" >&2; exit 2; }
	@echo "Installing into .venv takes a few minutes."
	$(PYTHON) -m venv --clear .venv
	$(PY) -m pip install -qq --disable-pip-version-check -c requirements.lock -e .
	touch $@

.venv/ready-%: .venv/ready
	$(PY) -m pip install -qq --disable-pip-version-check -c requirements.lock -e ".[$*]"
	touch $@
