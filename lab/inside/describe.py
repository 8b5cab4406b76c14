"""Name runs and their attentions in headings."""

from pathlib import Path

from lab.figures import name_positions

KINDS = {
    "lm": "causal LM",
    "mlm": "masked LM",
    "classifier": "classifier",
    "seq2seq": "encoder-decoder",
    "thread": "thread reader",
}
PARTS = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention from decoder to source",
}
THREAD_PARTS = {
    "encoder": "encoder self-attention of the ancestors",
    "decoder": "self-attention of the comment",
    "cross": "cross-attention from comment to ancestors",
}


def describe(run):
    """Return a run's model and data in a few words, for headings."""
    config, flags = run.model.body.config, run.config["flags"]
    causal = getattr(run.model.body, "causal", False)
    words = KINDS[run.kind] + " on a decoder" * (run.kind == "classifier" and causal)
    positions = name_positions(config)
    if config.pos == "alibi" and not causal:
        positions = positions.replace("ALiBi", f"ALiBi ({config.alibi})")
    words += f", {positions}"
    if run.config.get("body") == "generative":
        words += f", model of {run.config['classes'][0]}"
    if members := getattr(run.model, "members", ()):
        words += f", first of {len(members)} members"
    if flags.get("steps") == 0 and not any(map(flags.get, ("init_from", "init", "class_steps"))):
        words += ", untrained"
    elif "data" in flags:
        words += f", trained on {Path(flags['data']).name}"
    if run.kind == "mlm" and "languages" in run.config:
        words += f", reads {run.config['languages'][0]}"
    return words + (f", {run.weights_of}" if run.weights_of else "")


def name_part(run, part):
    """Return the name of an attention of a run, "" if the run has only one."""
    return (THREAD_PARTS if run.kind == "thread" else PARTS).get(part, "")
