# `make` lists the targets. Each builds its environment, with the versions in requirements.lock.

PYTHON ?= python3
DATA ?= speeches
SEED ?= 0
SEEDS ?= 1
SPLIT ?= full
TEXT ?=
CASES ?= 500

PY = .venv/bin/python
CLEAN = $(if $(filter clean,$(SPLIT)),-clean)
ASSIGNMENT = out/assignment$(CLEAN)

.PHONY: help demo assignment figures recipe-decoder recipe-decoder-pretrained recipe-frozen \
	recipe-frozen-pretrained recipe-likelihood need-text study-nope study-clap numbers bench bench-assignment test test-all \
	fuzz lint clean clean-runs rebuild

help:
	@awk -F ':.*## ' '/^## / { print "\n" substr($$0, 4) } \
		/^[a-z-]+:.*## / { printf "  make %-27s%s\n", $$1, $$2 }' Makefile

## First steps

SENTENCE = We will defend the central granary together before the first census.

demo: .venv/ready  ## train a small encoder, classifier and decoder, draw their attention
	$(PY) train_mlm.py --pos alibi --n-embd 128 --n-layer 2 --lr 1e-3 --init-std 0.05 --steps 600 \
		--out out/demo/encoder --overwrite
	$(PY) train_classifier.py --encoder out/demo/encoder --out out/demo/classifier --overwrite
	$(PY) train_lm.py --pos alibi --out out/demo/lm --overwrite
	$(PY) attention_maps.py out/demo/encoder --text "$(SENTENCE)"
	$(PY) attention_maps.py out/demo/lm --text "$(SENTENCE)" --positions --html
	$(PY) sample.py out/demo/encoder --text "There is no [MASK] in a steady lamp."
	@echo "Open in out/demo: the figures and the page in lm/maps, lm/curve.png, classifier/confusion.png."
	@echo "To run the scripts yourself: source .venv/bin/activate, then python train_lm.py --pos nope"

assignment: .venv/ready  ## all parts, and report.html to hand in: DATA=path SEEDS=3 SPLIT=clean
	$(PY) -m studies.assignment --data $(DATA) --seeds $(SEEDS) --split $(SPLIT) --out $(ASSIGNMENT)

figures: assignment  ## redraw the README's figures from the assignment: DATA=path SEEDS=3
	mkdir -p docs/figures
	cp $(ASSIGNMENT)/compare-lm/compare.png docs/figures/compare-lm.png
	cp $(ASSIGNMENT)/compare-classifier/compare.png docs/figures/compare-classifier.png
	$(PY) attention_maps.py $(ASSIGNMENT)/lm-alibi-0 --text "This is a test sentence"
	cp $(ASSIGNMENT)/lm-alibi-0/maps/map-1-this-is-a-test-sentence.png docs/figures/maps-lm-alibi.png

## Recipes: better results from a small text (docs/recipes.md). All take DATA=path SEED=n.

NOISE = --drop-words 0.1 --swap-words 0.3 --rare-unknown 0.3 --label-smoothing 0.05
FROZEN = --split $(SPLIT) --seed $(SEED)

recipe-decoder: .venv/ready  ## eight decoders averaged, trained on DATA alone
	$(PY) train_lm.py --data $(DATA) --seed $(SEED) --pos alibi --n-head 4 --n-ffn 256 --lr 2e-3 \
		--steps 1000 --members 8 $(NOISE) --eval-stride 8 --eval-every 500 \
		--out out/recipe-decoder-$(SEED)

recipe-decoder-pretrained: .venv/ready need-text  ## a decoder pretrained on TEXT=path first
	$(PY) train_lm.py --data $(TEXT) --vocab-from $(DATA) --seed $(SEED) --pos alibi --n-embd 128 \
		--n-head 4 --n-ffn 512 --block-size 64 --lr 2e-3 --warmup 100 --decay 0.7 --steps 4000 \
		--eval-every 1000 --out out/recipe-decoder-text-$(SEED)
	$(PY) train_lm.py --data $(DATA) --init-from out/recipe-decoder-text-$(SEED) --seed $(SEED) \
		--lr 5e-4 --steps 600 --decay 1 $(NOISE) --swap-words 0.1 --eval-stride 16 --eval-every 200 \
		--out out/recipe-decoder-pretrained-$(SEED)

FROZEN_TEXT = out/recipe-frozen-text-$(SEED)-$(SPLIT)
FROZEN_HEAD = out/recipe-frozen-head-$(SEED)$(CLEAN)
FROZEN_BIASES = out/recipe-frozen-biases-$(SEED)$(CLEAN)

recipe-frozen: .venv/ready  ## a frozen encoder with two classifiers (SPLIT=clean: no test sentences)
	$(PY) train_mlm.py --pos alibi --data $(DATA) $(FROZEN) --out $(FROZEN_TEXT)
	$(PY) train_classifier.py --encoder $(FROZEN_TEXT) --data $(DATA) $(FROZEN) --out $(FROZEN_HEAD)
	$(PY) -m beyond.train_generative --init-from $(FROZEN_TEXT) --data $(DATA) $(FROZEN) \
		--out $(FROZEN_BIASES)
	$(PY) compare.py $(FROZEN_HEAD) $(FROZEN_BIASES) --together --labels "head,biases" \
		--out out/recipe-frozen-$(SEED)$(CLEAN)

recipe-frozen-pretrained: .venv/ready need-text  ## a frozen encoder with one classifier, pretrained on TEXT=path first
	$(PY) train_mlm.py --pos alibi --data $(TEXT) --vocab-from $(DATA) $(FROZEN) --steps 500 \
		--out out/recipe-frozen-wide-$(SEED)-$(SPLIT)
	$(PY) train_mlm.py --init-from out/recipe-frozen-wide-$(SEED)-$(SPLIT) --data $(DATA) $(FROZEN) \
		--steps 300 --out out/recipe-frozen-both-$(SEED)-$(SPLIT)
	$(PY) train_classifier.py --encoder out/recipe-frozen-both-$(SEED)-$(SPLIT) --data $(DATA) \
		$(FROZEN) --out out/recipe-frozen-pretrained-$(SEED)$(CLEAN)

# TEXT's decoders, one of BPE and one of DATA's words, are trained once for all seeds.
NAME_OF = $(basename $(notdir $(patsubst %/,%,$(1))))
TEXT_LM = $(PY) train_lm.py --data $(TEXT) --pos alibi --n-embd 128 --n-head 4 --n-ffn 512 \
	--block-size 64 --lr 2e-3 --warmup 100 --decay 0.7 --steps 4000 --eval-every 2000
TEXT_BPE = out/recipe-likelihood-$(call NAME_OF,$(TEXT))-bpe
TEXT_WORDS = out/recipe-likelihood-$(call NAME_OF,$(TEXT))-words-of-$(call NAME_OF,$(DATA))-$(SPLIT)
LIKELIHOOD = $(PY) -m beyond.train_generative --data $(DATA) $(FROZEN) --members 4 --swap-words 0.1 \
	--steps 300 --lr 5e-4 --class-lr 3e-4

recipe-likelihood: .venv/ready need-text $(TEXT_BPE)/result.json $(TEXT_WORDS)/result.json  ## decoders per class, pretrained on TEXT=path first
	$(LIKELIHOOD) --init-from $(TEXT_BPE) --rare-unknown 0 --out out/recipe-likelihood-bpe-$(SEED)$(CLEAN)
	$(LIKELIHOOD) --init-from $(TEXT_WORDS) --out out/recipe-likelihood-words-$(SEED)$(CLEAN)
	$(PY) baselines.py --data $(DATA) --split $(SPLIT) --out out/recipe-likelihood-bayes$(CLEAN) \
		--overwrite
	$(PY) compare.py out/recipe-likelihood-bpe-$(SEED)$(CLEAN) \
		out/recipe-likelihood-words-$(SEED)$(CLEAN) out/recipe-likelihood-bayes$(CLEAN) \
		--together --labels "BPE,words" --out out/recipe-likelihood-$(SEED)$(CLEAN)

$(TEXT_BPE)/result.json: | .venv/ready need-text
	$(TEXT_LM) --tokenizer bpe --out $(@D)

$(TEXT_WORDS)/result.json: | .venv/ready need-text
	$(TEXT_LM) --vocab-from $(DATA) --split $(SPLIT) --out $(@D)

need-text:
	@test -n "$(TEXT)" || { echo "make: TEXT is missing: name the text to pretrain on," \
		"for example TEXT=wikitext2" >&2; exit 2; }

## Studies: an hour each. QUICK=1 takes minutes, FULL=1 is for a GPU. DATA=path is optional.

STUDY = $(if $(QUICK),--size quick,$(if $(FULL),--size full,--size laptop)) \
	$(if $(filter-out file undefined,$(origin DATA)),--data $(DATA))

study-nope: .venv/ready  ## how a decoder without position encoding learns the order of words
	$(PY) -m studies.nope $(STUDY)

study-clap: .venv/ready  ## RoBERTa, ALiBi and CLAP compared by masked-LM perplexity
	$(PY) -m studies.clap $(STUDY)

numbers: .venv/ready  ## repeat the quick numbers of README and docs, and name those that drifted
	$(PY) -m studies.check_numbers --data $(DATA)

## Speed

bench: .venv-bench/ready  ## tokens per second compared with other libraries: BENCH="--sizes small"
	.venv-bench/bin/python -m bench.speed --out bench.json $(BENCH)

bench-assignment: .venv/ready  ## CPU seconds of the assignment compared with a plain implementation
	$(PY) -m bench.assignment --data $(DATA)

## Development

PYTEST = $(PY) -m pytest -q -n 2 --dist loadfile

test: .venv/ready-to-test  ## every test but the long ones: two minutes on two cores
	$(PYTEST) --ignore tests/hardening

test-all: .venv/ready-to-test  ## every test, as in CI: five minutes
	$(PYTEST)

fuzz: .venv/ready-to-test  ## the hardening tests with CASES=500 generated inputs each, 9 minutes
	POSLAB_FUZZ=$(CASES) $(PY) -m pytest -q -s tests/hardening

lint: .venv/ready-to-test  ## ruff check and ruff format --check
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

clean:  ## delete the environments and caches; runs are kept
	rm -rf .venv .venv-bench .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-runs:  ## delete every run in out/, after asking
	@printf "Delete out/ with %s runs? [y/N] " "$$(find out -name config.json 2>/dev/null | wc -l)"; \
	read answer; if [ "$$answer" = y ]; then rm -rf out; else echo "Nothing deleted."; fi

# ---------------------------------------------------------------------------- environments
# "ready" is written last, so an interrupted installation begins again from an empty folder.
# An environment whose Python no longer starts, or that has lost a package, is rebuilt as well.

INSTALL = bin/pip install -qq --disable-pip-version-check -c requirements.lock
FIND = from importlib.util import find_spec; \
	assert all(map(find_spec, ["matplotlib", "numpy", "tokenizers", "torch"]))
check-python = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	{ echo "make: $(PYTHON) is not Python 3.10 or newer;" \
		"name one that is, for example PYTHON=python3.12" >&2; exit 2; }
unless-it-works = $(shell $(1)/bin/python -c '$(FIND)' >/dev/null 2>&1 || echo rebuild)

.venv/ready: requirements.txt $(call unless-it-works,.venv)
.venv-bench/ready: requirements-bench.txt $(call unless-it-works,.venv-bench)
.venv/ready .venv-bench/ready: requirements.lock
	@$(check-python)
	@echo "Installing into $(@D) takes a few minutes."
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/$(INSTALL) -r $(filter %.txt,$^)
	touch $@

.venv/ready-to-test: .venv/ready requirements-test.txt requirements-beyond.txt
	rm .venv/ready
	.venv/$(INSTALL) -r requirements-test.txt
	touch .venv/ready $@

rebuild:
