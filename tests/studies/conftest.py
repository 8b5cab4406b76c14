"""Fixtures of the tests of studies/."""

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
            outcome = call(*words, *more.get(words[0], ()))
            started.append(words)
            text = f"{sweep.typed(words)}\n{outcome.out}{outcome.err}"
            sweep.log_of(path).write_text(text, encoding="utf-8")
            return Mock(returncode=outcome.code, poll=lambda: outcome.code)

        monkeypatch.setattr(sweep, "start", start)
        return started

    return patch
