"""The pages: links lead somewhere, and each call of docs/python.md and docs/tour.ipynb is made."""

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT

# The page compares shapes, not numbers, so fewer steps suffice.
FEWER = {"train_mlm": "--steps 200", "train_lm": "--steps 250 --eval-every 50"}
FEWER |= {"train_seq2seq": "--steps 100"}
PAGE, NOTEBOOK = ROOT / "docs" / "python.md", ROOT / "docs" / "tour.ipynb"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python(line, folder):
    """Run a `python ...` line of a page in a folder, with the scripts of the repository."""
    more = [flags for script, flags in FEWER.items() if script in line]
    words = shlex.split(" ".join([line, *more]))[1:]
    words[0] = str(ROOT / words[0]) if words[0].endswith(".py") else words[0]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def commands_of_demo():
    """Return the trainings of `make demo`, read from the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    recipe = makefile.split("\ndemo:")[1].split("\nassignment:")[0]
    return [f"python {words}" for words in re.findall(r"\t\$\(PY\) (train_.*)", recipe)]


class SameShape(doctest.OutputChecker):
    """Numbers and words may differ, since other processors round differently in training."""

    def check_output(self, want, got, flags):
        return want == got or shape(want) == shape(got)


def shape(output):
    """Return a printed value with # for numbers, without the spaces that pad them, and w for words:
    "0.7 , the pay" becomes "#, w"."""
    numbers = re.sub(r" *-?\d+(\.\d*)?(e-?\d+)? *|-?\binf\b", "#", output)
    words = re.sub(r"[^\W\d_#]+(['’-][^\W\d_]+)*", "w", numbers)
    return re.sub(r"w([\s,.;:?!'’\"-]+w)+[,.;:?!]*", "w", re.sub(r"\s+", " ", words))


def headings(page):
    """Return the anchors of a page's headings, as GitHub names them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', text)
    for link in filter(lambda link: "://" not in link, map("".join, links)):
        file, _, heading = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not heading or heading in headings(target), link


def test_the_page_on_python_prints_what_it_shows(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    for line in commands_of_demo():
        python(line, tmp_path)
    for line in re.findall(r"^python .*", text, re.MULTILINE):
        python(line, tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    examples = doctest.DocTestParser().get_doctest(blocks, {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 25
    failures = []
    runner = doctest.DocTestRunner(SameShape(), verbose=False)
    runner.run(examples, out=failures.append)
    assert not failures, "\n".join(failures)


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    left_out = shutil.ignore_patterns(".*", "out", "tests", "speeches", "wikitext2", "__pycache__")
    shutil.copytree(ROOT, tmp_path / "repository", ignore=left_out)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    shown = [len(cell.outputs) > 0 for cell in notebook.cells if cell.cell_type == "code"]
    folder = {"metadata": {"path": str(tmp_path / "repository" / "docs")}}
    nbclient.NotebookClient(notebook, timeout=600, resources=folder).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [len(cell.outputs) > 0 for cell in cells] == shown and sum(shown) > 8
    kinds = [kind for cell in cells for output in cell.outputs for kind in output.get("data", ())]
    assert kinds.count("image/png") >= 5 and "text/html" in kinds
