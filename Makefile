PYTHON ?= python3
DATA ?= speeches
SEEDS ?= 1
PY = .venv/bin/python

.PHONY: demo test assignment figures bench clean

TEXT = We will defend the central granary together before the first census.

demo: .venv/ready  ## pretrain, classify with the frozen encoder, measure perplexity, draw the maps: on generated text
	$(PY) train_mlm.py --pos alibi --n-embd 128 --n-layer 2 --lr 1e-3 --init-std 0.05 --steps 600 --out out/demo/encoder --overwrite
	$(PY) train_classifier.py --encoder out/demo/encoder --out out/demo/classifier --overwrite
	$(PY) train_lm.py --pos alibi --out out/demo/lm --overwrite
	$(PY) attention_maps.py out/demo/encoder --text "$(TEXT)"
	$(PY) attention_maps.py out/demo/lm --text "$(TEXT)" --positions
	$(PY) sample.py out/demo/encoder --text "We will [MASK] the central granary together."
	@echo "Now open out/demo/lm/maps/map-1.png, out/demo/lm/curve.png and out/demo/classifier/confusion.png."
	@echo "To call the scripts yourself: source .venv/bin/activate, then python train_lm.py --pos nope"

test: .venv/ready
	$(PY) -m pytest -q

assignment: .venv/ready  ## all parts, all positions: make assignment DATA=path SEEDS=3
	$(PY) assignment.py --data $(DATA) --seeds $(SEEDS)

figures: assignment  ## the README's figures: make figures DATA=path SEEDS=3
	mkdir -p docs/figures
	cp out/assignment/compare-lm/compare.png docs/figures/compare-lm.png
	cp out/assignment/compare-classifier/compare.png docs/figures/compare-classifier.png
	cp out/assignment/lm-alibi-0/maps/map-1.png docs/figures/maps-lm-alibi.png
	cp out/assignment/classifier-alibi-0/maps/map-1.png docs/figures/maps-classifier-alibi.png
	cp out/assignment/lm-alibi-0/maps/positions.png docs/figures/positions-alibi.png
	cp out/assignment/lm-sinusoidal-0/maps/positions.png docs/figures/positions-sinusoidal.png

bench: .venv/ready
	$(PY) bench.py --data $(DATA)

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q -r requirements.txt
	touch $@

clean:
	rm -rf .venv out
