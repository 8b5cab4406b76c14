"""Fixtures of the tests of studies/."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers import call

from lab import figures
from studies import sweep


@pytest.fixture
def jobs_here(monkeypatch, tmp_path):
    """jobs_here({"train_lm": flags}): run the jobs of a sweep in this process, which saves their
    start-ups, with further flags for some scripts and empty figures. Returns their words."""
    figures.save(figures.new_figure(figsize=(1, 1))[0], tmp_path / "empty.png")
    png = (tmp_path / "empty.png").read_bytes()

    def patch(more):
        started = []

        def start(path, words, place):
            outcome = call(*words, *more.get(words[0], ()))
            started.append(words)
            text = f"{sweep.typed(words)}\n{outcome.out}{outcome.err}"
            sweep.log_of(path).write_text(text, encoding="utf-8")
            return Mock(returncode=outcome.code, poll=lambda: outcome.code)

        monkeypatch.setattr(sweep, "start", start)
        monkeypatch.setattr(figures, "save", lambda figure, path: Path(path).write_bytes(png))
        return started

    return patch
