PYTHON ?= python3
DATA ?= speeches
SEEDS ?= 1
PY = .venv/bin/python

.PHONY: demo test assignment clean

demo: .venv/ready  ## pretrain, classify with the frozen encoder, measure perplexity, draw the maps: on generated text
	$(PY) train_mlm.py --pos alibi --steps 600 --out out/demo/mlm --overwrite
	$(PY) train_classifier.py --encoder out/demo/mlm --out out/demo/classifier --overwrite
	$(PY) train_lm.py --pos alibi --out out/demo/lm --overwrite
	$(PY) attention_maps.py out/demo/mlm out/demo/lm

test: .venv/ready
	$(PY) -m pytest -q

assignment: .venv/ready  ## all parts, all positions: make assignment DATA=path SEEDS=3
	$(PY) assignment.py --data $(DATA) --seeds $(SEEDS)

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q -r requirements.txt
	touch $@

clean:
	rm -rf .venv out
