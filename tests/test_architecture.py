"""Rules of the repository, checked on the syntax trees of all its Python files.

Each rule is a function that takes a Repository and returns its complaints, one line each.
"""

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from helpers import ROOT, TABLE

from data import NAMES
from model import POSITIONS

SCRIPTS = "train_mlm train_classifier train_lm attention_maps sample compare baselines"
TOP = {"model", *SCRIPTS.split()}
GROUPS = ("data", "nets", "lab", "beyond", "studies", "course", "bench")
LIBRARY = "data model nets lab"
REQUIRED = "torch numpy tokenizers matplotlib"  # as in requirements.txt
EXTRAS, RIVALS = "safetensors sacrebleu", "transformers x_transformers"

# The modules and the installed packages that a group may import. "top": the scripts at the top.
MAY_IMPORT = {
    "data": ("data", "torch numpy tokenizers"),
    "nets/cross_entropy": ("nets.device", "torch"),
    "nets/device": ("", "torch"),
    "model": ("nets.cross_entropy nets.device", "torch"),
    "nets": ("data model nets", f"{REQUIRED} safetensors"),
    "lab": (LIBRARY, REQUIRED),
    "top": (LIBRARY, REQUIRED),
    "beyond": (f"{LIBRARY} beyond", f"{REQUIRED} {EXTRAS}"),
    "studies": (f"{LIBRARY} studies", REQUIRED),
    "course": (f"{LIBRARY} course", REQUIRED),
    "bench": (f"{LIBRARY} bench", f"{REQUIRED} {RIVALS}"),
}
LINE_LIMITS = {
    **dict.fromkeys(("README.md", "train_lm.py", "train_mlm.py"), 200),
    **dict.fromkeys(("sample.py", "compare.py", "baselines.py"), 220),
    **dict.fromkeys(("beyond/train_seq2seq.py", "beyond/train_tlm.py"), 230),
    **dict.fromkeys(("train_classifier.py", "attention_maps.py", "beyond/train_thread.py"), 240),
    "model.py": 400,
}
LONGEST_COPY = 8  # lines in a row that two files may share


@dataclass(frozen=True)
class Import:
    """An import. `name` is taken from `module`, or empty if the module itself is imported."""

    line: int
    module: str
    name: str
    alias: str  # "" without `as`
    local: str  # what the file calls it
    inside: bool  # inside a function


class Repository:
    """All Python files of a repository: {path: text}, {path: syntax tree}, {path: imports}."""

    def __init__(self, root):
        self.root = Path(root)
        paths = [*self.root.glob("*.py")]
        for group in (*GROUPS, "tests"):
            paths += self.root.glob(f"{group}/**/*.py")
        self.texts = {
            path.relative_to(self.root).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(paths)
        }
        self.trees = {path: ast.parse(text) for path, text in self.texts.items()}
        self.tests = [path for path in self.texts if path.startswith("tests/")]
        self.sources = [path for path in self.texts if path not in self.tests]
        self.modules = {module_of(path): path for path in self.sources}
        self.imports = {path: list(self.find_imports(tree)) for path, tree in self.trees.items()}

    def find_imports(self, tree):
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        inside = {n for f in ast.walk(tree) if isinstance(f, functions) for n in ast.walk(f)}
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            for item in node.names:
                module, name = item.name, ""
                if isinstance(node, ast.ImportFrom):
                    module, name = "." * node.level + (node.module or ""), item.name
                    if f"{module}.{name}" in self.modules:
                        module, name = f"{module}.{name}", ""
                alias, local = item.asname or "", item.asname or item.name.split(".")[0]
                yield Import(node.lineno, module, name, alias, local, node in inside)

    def own(self, path):
        """The imports of modules of this repository."""
        return [one for one in self.imports[path] if one.module in self.modules]


def module_of(path):
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def group_of(path):
    """The key of a file in MAY_IMPORT."""
    stem = path.removesuffix(".py")
    folder = path.split("/")[0] if "/" in stem else "top"
    return stem if stem in MAY_IMPORT else folder


# ------------------------------------------------------------------------------------- import rules


def import_order(repo):
    """Imports lead from the scripts to lab/, nets/, model.py and data/, never back or across."""
    found = []
    for path in repo.sources:
        for one in repo.own(path):
            allowed, _ = MAY_IMPORT[group_of(path)]
            if not any(f"{one.module}.".startswith(f"{group}.") for group in allowed.split()):
                found.append(f"{path}:{one.line}: may not import {one.module}")
            elif "\nif __name__ == " in repo.texts[repo.modules[one.module]]:
                found.append(f"{path}:{one.line}: imports the script {one.module}")
    return found


def foreign_packages(repo):
    """A group imports the standard library and the packages that MAY_IMPORT gives it."""
    ours = {*GROUPS, *TOP, *sys.stdlib_module_names}
    return [
        f"{path}:{one.line}: may not import {one.module}"
        for path in repo.sources
        for one in repo.imports[path]
        if one.module.split(".")[0] not in {*ours, *MAY_IMPORT[group_of(path)][1].split()}
    ]


def import_cycles(repo):
    """No module imports itself, directly or through others."""
    needs = {module_of(path): {one.module for one in repo.own(path)} for path in repo.sources}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return [f"import cycle: {', '.join(error.args[1])}"]
    return []


def imports_in_functions(repo):
    """Modules of this repository are imported at the top of a file."""
    return [
        f"{path}:{one.line}: imports {one.module} inside a function"
        for path in repo.texts
        for one in repo.own(path)
        if one.inside
    ]


def reexports(repo):
    """A name is taken from the module that defines it, not from one that imports it.

    lab/__init__.py may collect names for notebooks, but no file here takes them from there.
    """
    borrowed = {
        module: {one.local for one in repo.imports[path]} - defined_names(repo.trees[path])
        for module, path in repo.modules.items()
    }
    found = []
    for path in repo.sources:
        taken = [(one.line, one.module, one.name) for one in repo.own(path)]
        modules = {one.local: one.module for one in repo.own(path) if not one.name}
        for node in ast.walk(repo.trees[path]):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in modules:
                    taken.append((node.lineno, modules[node.value.id], node.attr))
        for line, module, name in taken:
            if name in borrowed[module]:
                found.append(f"{path}:{line}: takes {name} from {module}")
    return found


def defined_names(tree):
    """The names that a module defines itself at its top level."""
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            names |= {part.id for part in ast.walk(target or ast.Pass()) if hasattr(part, "id")}
    return names


def renamed_modules(repo):
    """A module of this repository keeps its name wherever it is imported."""
    return [
        f"{path}:{one.line}: imports {one.module} as {one.alias}"
        for path in repo.texts
        for one in repo.own(path)
        if one.alias and not one.name
    ]


# ---------------------------------------------------------------------------------- size and copies


def top_level_files(repo):
    """The top of the repository holds eight Python files."""
    there = {module_of(path) for path in repo.sources if "/" not in path}
    return [f"{name}.py: missing, or does not belong at the top" for name in TOP ^ there]


def too_many_lines(repo):
    """The files that a newcomer reads first are short."""
    counts = {
        path: len((repo.root / path).read_text(encoding="utf-8").splitlines())
        for path in LINE_LIMITS
        if (repo.root / path).exists()
    }
    return [
        f"{path}: {count} lines, at most {LINE_LIMITS[path]}; shorten it, or raise LINE_LIMITS"
        for path, count in counts.items()
        if count > LINE_LIMITS[path]
    ]


def copied_passages(repo):
    """No two files share more than eight lines of code in a row, imports aside."""
    length, places = LONGEST_COPY + 1, defaultdict(dict)
    for path in repo.sources:
        imports = {
            line
            for node in ast.walk(repo.trees[path])
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for line in range(node.lineno, node.end_lineno + 1)
        }
        numbered = enumerate(map(str.strip, repo.texts[path].splitlines()), start=1)
        code = [(n, line) for n, line in numbered if line and not line.startswith("#")]
        lines = [(number, line) for number, line in code if number not in imports]
        for i in range(len(lines) - length + 1):
            passage = tuple(line for _, line in lines[i : i + length])
            places[passage].setdefault(path, lines[i][0])
    remedy = "move them into a function that both call"
    return [
        f"{' and '.join(f'{path}:{line}' for path, line in where.items())}: {length} equal lines; "
        + remedy
        for where in places.values()
        if len(where) > 1
    ]


# ---------------------------------------------------------------------------------------- the tests


def imports_between_tests(repo):
    """Tests share code in helpers.py and fixtures in conftest.py, which nothing imports."""
    modules = {Path(path).stem for path in repo.tests}
    private = {name for name in modules if name.startswith("test_")} | {"conftest"}
    return [
        f"{path}:{one.line}: imports {one.module}"
        for path in repo.tests
        for one in repo.imports[path]
        if one.module.split(".")[-1] in private
    ]


def unknown_guarantees(repo):
    """Every test that docs/guarantees.md names exists."""
    text = (repo.root / "docs" / "guarantees.md").read_text(encoding="utf-8")
    return [
        f"docs/guarantees.md names {path}::{name}, which does not exist"
        for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?[^`]*`", text)
        if path not in repo.tests or (name and f"\ndef {name}(" not in repo.texts[path])
    ]


# ---------------------------------------------------------------------------------------- importing

# Run in a process of its own: import each module and tell what changed. Packages that only some
# groups need are hidden, as if they were not installed.
WATCH = """
import contextlib, importlib, io, logging, os, random, signal, sys, threading, warnings
import matplotlib, numpy, torch, torch.nn.attention.flex_attention
for name in {hidden!r}:
    sys.modules[name] = None

def state():
    return dict(
        rcparams=dict(dict.items(matplotlib.rcParams)),
        torch=(
            torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads(),
            torch.get_num_interop_threads(), torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
            torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32,
            (torch.ones(1) * 1e-40).item(),
        ),
        random=(random.getstate(), numpy.random.get_state()[1].tolist(), torch.initial_seed(),
                torch.get_rng_state().tolist()),
        signals=[signal.getsignal(number) for number in signal.valid_signals()],
        hooks=(sys.excepthook, sys.argv[:], sys.stdout, sys.stderr, sys.gettrace()),
        environment=dict(os.environ),
        warnings=list(warnings.filters),
        logging=(logging.root.level, logging.root.handlers[:]),
        threads=threading.active_count(),
    )

for module in {modules!r}:
    before, out = state(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            importlib.import_module(module)
        except Exception as error:
            print("cannot be imported:", error)
    if out.getvalue():
        print(module + ": prints", repr(out.getvalue().strip()))
    after = state()
    for name in before:
        if before[name] != after[name]:
            print(module + ": changes", name)
"""


def noisy_imports(repo):
    """Importing a module prints nothing and changes no setting of this process."""
    code = WATCH.format(modules=sorted(repo.modules), hidden=f"{EXTRAS} {RIVALS}".split())
    # Not pytest's environment: the modules that it has imported may have changed that one
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(repo.root)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repo.root, env=env, capture_output=True, encoding="utf-8"
    )
    return (done.stdout + done.stderr).splitlines()


# ---------------------------------------------------------------------------------- this repository


@pytest.fixture(scope="module")
def repo():
    return Repository(ROOT)


RULES = (
    *(import_order, foreign_packages, import_cycles, imports_in_functions, reexports),
    *(renamed_modules, top_level_files, too_many_lines, copied_passages),
    *(imports_between_tests, unknown_guarantees, noisy_imports),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_repository_follows_the_rule(rule, repo):
    complaints = rule(repo)
    assert not complaints, "\n".join(["", *complaints])  # one line for each


def test_every_script_is_tested(repo):
    scripts = {module_of(path) for path in repo.sources if "\nif __name__ == " in repo.texts[path]}
    scripts -= {script.module for script in TABLE}
    in_handouts = ("course.stubs.", "course.handout_check")
    missing = [script for script in scripts if not script.startswith(in_handouts)]
    assert not missing, "add them to TABLE in tests/helpers.py"


@pytest.mark.parametrize("page, names", [("positions.md", POSITIONS), ("data.md", NAMES)])
def test_every_name_is_described(page, names):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert not [name for name in names if f"`{name}`" not in text], f"describe them in docs/{page}"
