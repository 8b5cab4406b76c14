PYTHON ?= python3
DATA ?= speeches
SEEDS ?= 1
SPLIT ?= full
CLEAN = $(if $(filter clean,$(SPLIT)),-clean)
PY = .venv/bin/python

SEED ?= 0
TEXT ?=

.PHONY: help demo test fuzz assignment recipe-decoder recipe-decoder-pretrained recipe-frozen recipe-frozen-pretrained figures bench bench-assignment clean need-text study-clap study-nope

SENTENCE = We will defend the central granary together before the first census.

help:  ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-27s%s\n", $$1, $$2 }' Makefile

demo: .venv/ready  ## pretrain, classify with the frozen encoder, measure perplexity, draw the maps: on generated text
	$(PY) train_mlm.py --pos alibi --n-embd 128 --n-layer 2 --lr 1e-3 --init-std 0.05 --steps 600 --out out/demo/encoder --overwrite
	$(PY) train_classifier.py --encoder out/demo/encoder --out out/demo/classifier --overwrite
	$(PY) train_lm.py --pos alibi --out out/demo/lm --overwrite
	$(PY) attention_maps.py out/demo/encoder --text "$(SENTENCE)"
	$(PY) attention_maps.py out/demo/lm --text "$(SENTENCE)" --positions
	$(PY) sample.py out/demo/encoder --text "There is no [MASK] in a steady lamp."
	@echo "Now open the maps in out/demo/lm/maps/, out/demo/lm/curve.png and out/demo/classifier/confusion.png."
	@echo "To call the scripts yourself: source .venv/bin/activate, then python train_lm.py --pos nope"

test: .venv/ready-to-test  ## the tests, three to five minutes of two cores
	$(PY) -m pytest -q -n 2 --dist loadfile

CASES ?= 500

fuzz: .venv/ready-to-test  ## thousands of generated texts, tensors, command lines, damaged files and kills: make fuzz CASES=500
	POSLAB_FUZZ=$(CASES) $(PY) -m pytest -q -s tests/hardening tests/lab/test_exact_resume.py

assignment: .venv/ready  ## all parts, all positions: make assignment DATA=path SEEDS=3
	$(PY) -m studies.assignment --data $(DATA) --seeds $(SEEDS)

# What makes a small text enough: see docs/results.md. SEED=n; the pretrained ones need TEXT=path of WikiText-2 or another large text.
NOISE = --drop-words 0.1 --swap-words 0.3 --rare-unknown 0.3 --label-smoothing 0.05

recipe-decoder: .venv/ready  ## below Kneser-Ney on train_LM.txt alone: make recipe-decoder DATA=path SEED=0
	$(PY) train_lm.py --data $(DATA) --seed $(SEED) --pos alibi --n-head 4 --n-ffn 256 --lr 2e-3 --steps 1000 --members 8 $(NOISE) \
		--eval-stride 8 --eval-every 500 --out out/recipe-decoder-$(SEED)

recipe-decoder-pretrained: .venv/ready need-text  ## first TEXT, then train_LM.txt
	$(PY) train_lm.py --data $(TEXT) --vocab-from $(DATA) --seed $(SEED) --pos alibi --n-embd 128 --n-head 4 --n-ffn 512 --block-size 64 \
		--lr 2e-3 --warmup 100 --decay 0.7 --steps 4000 --eval-every 1000 --out out/recipe-decoder-text-$(SEED)
	$(PY) train_lm.py --data $(DATA) --init-from out/recipe-decoder-text-$(SEED) --seed $(SEED) --lr 5e-4 --steps 600 --decay 1 $(NOISE) --swap-words 0.1 \
		--eval-stride 16 --eval-every 200 --out out/recipe-decoder-pretrained-$(SEED)

recipe-frozen: .venv/ready  ## a frozen encoder pretrained on the training text: SPLIT=clean leaves the test sentences out of it
	$(PY) train_mlm.py --pos alibi --data $(DATA) --split $(SPLIT) --seed $(SEED) --out out/recipe-frozen-text-$(SEED)-$(SPLIT)
	$(PY) train_classifier.py --encoder out/recipe-frozen-text-$(SEED)-$(SPLIT) --data $(DATA) --split $(SPLIT) --seed $(SEED) --out out/recipe-frozen-$(SEED)$(CLEAN)

recipe-frozen-pretrained: .venv/ready need-text  ## the same, pretrained on TEXT first
	$(PY) train_mlm.py --pos alibi --data $(TEXT) --vocab-from $(DATA) --split $(SPLIT) --seed $(SEED) --steps 500 --out out/recipe-frozen-wide-$(SEED)-$(SPLIT)
	$(PY) train_mlm.py --init-from out/recipe-frozen-wide-$(SEED)-$(SPLIT) --data $(DATA) --split $(SPLIT) --seed $(SEED) --steps 300 --out out/recipe-frozen-both-$(SEED)-$(SPLIT)
	$(PY) train_classifier.py --encoder out/recipe-frozen-both-$(SEED)-$(SPLIT) --data $(DATA) --split $(SPLIT) --seed $(SEED) \
		--out out/recipe-frozen-pretrained-$(SEED)$(CLEAN)

need-text:
	@test -n "$(TEXT)" || { echo "make: TEXT is missing; give the text to pretrain on, for example TEXT=wikitext2" >&2; exit 2; }

# The studies read their own default text unless DATA is given. QUICK=1: minutes; FULL=1: for a GPU or a night; neither: about an hour.
STUDY = $(if $(QUICK),--size quick,$(if $(FULL),--size full,--size laptop)) $(if $(filter-out file undefined,$(origin DATA)),--data $(DATA))

study-clap: .venv/ready  ## RoBERTa, ALiBi and CLAP by masked-LM perplexity: make study-clap DATA=path
	$(PY) -m studies.clap $(STUDY)

study-nope: .venv/ready  ## where positions come from: make study-nope DATA=path
	$(PY) -m studies.nope $(STUDY)

figures: assignment  ## the README's figures: make figures DATA=path SEEDS=3
	mkdir -p docs/figures
	cp out/assignment/compare-lm/compare.png docs/figures/compare-lm.png
	cp out/assignment/compare-classifier/compare.png docs/figures/compare-classifier.png
	cp out/assignment/lm-alibi-0/maps/map-1-this-is-a-test-sentence.png docs/figures/maps-lm-alibi.png

bench: .venv-bench/ready  ## tokens a second beside transformers and x-transformers, on one thread and on all: make bench BENCH="--sizes small"
	.venv-bench/bin/python -m bench.speed --out bench.json $(BENCH)

bench-assignment: .venv/ready  ## CPU seconds of the whole assignment beside the usual implementation
	$(PY) -m bench.assignment --data $(DATA)

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q -r requirements.txt
	touch $@

.venv/ready-to-test: .venv/ready requirements-test.txt
	.venv/bin/pip install -q -r requirements-test.txt
	touch $@

.venv-bench/ready: requirements.txt requirements-bench.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install -q -r requirements-bench.txt
	touch $@

clean:  ## remove the environments and all runs
	rm -rf .venv .venv-bench out
