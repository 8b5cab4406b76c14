"""Fixtures of the tests of studies/."""

import shlex
from unittest.mock import Mock

import pytest
from helpers import call

from lab import figures
from studies import sweep


@pytest.fixture
def jobs_here(monkeypatch):
    """jobs_here({"train_lm": flags}): run the jobs of a sweep in this process, which saves their
    start-ups, with further flags for some scripts and coarse figures. Returns their words."""
    monkeypatch.setitem(figures.STYLE, "savefig.dpi", 20)

    def patch(more):
        started = []

        def start(path, words):
            further = [str(word) for word in more.get(words[0], ())]
            outcome = call(*words, *further)
            config = path / "config.json"
            if further and config.exists():  # as if the study had made the run
                text = config.read_text("utf-8").replace(f" {shlex.join(further)}", "", 1)
                config.write_text(text, "utf-8")
            started.append(words)
            with open(sweep.log_of(path), "a", encoding="utf-8") as log:
                log.write(f"{outcome.out}{outcome.err}")
            return Mock(returncode=outcome.code, poll=lambda: outcome.code)

        monkeypatch.setattr(sweep, "start", start)
        return started

    return patch
