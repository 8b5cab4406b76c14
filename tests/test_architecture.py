"""Rules of the repository, checked on the syntax trees of all its Python files.

Each rule is a function that takes a Repository and returns its complaints, one line each. The
second half of this file breaks every rule once in a tiny made-up repository.
"""

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import pytest
from helpers import ROOT

TOP = {
    *("model", "train_mlm", "train_classifier", "train_lm"),
    *("attention_maps", "sample", "compare", "baselines"),
}
GROUPS = ("data", "nets", "lab", "beyond", "studies", "course", "bench")
LIBRARY = ("data", "model", "nets", "lab")

# What the modules of a group may import from this repository. "top" are the scripts at the top.
MAY_IMPORT = {
    "data": ("data",),
    "nets/cross_entropy": (),
    "nets/device": (),
    "model": ("nets.cross_entropy", "nets.device"),
    "nets": ("data", "model", "nets"),
    "lab": LIBRARY,
    "top": LIBRARY,
    "beyond": (*LIBRARY, "beyond"),
    "studies": (*LIBRARY, "studies"),
    "course": (*LIBRARY, "course"),
    "bench": (*LIBRARY, "bench"),
}
# Installed packages that a group may import. requirements.txt holds the first four.
REQUIRED = ("torch", "numpy", "tokenizers", "matplotlib")
EXTRAS = ("safetensors", "sacrebleu")
RIVALS = ("transformers", "x_transformers")
PACKAGES = {
    "data": ("torch", "numpy", "tokenizers"),
    "nets/cross_entropy": ("torch",),
    "nets/device": ("torch",),
    "model": ("torch",),
    "nets": (*REQUIRED, "safetensors"),
    "lab": REQUIRED,
    "top": REQUIRED,
    "beyond": (*REQUIRED, *EXTRAS),
    "studies": REQUIRED,
    "course": REQUIRED,
    "bench": (*REQUIRED, *RIVALS),
}
LINE_LIMITS = {
    "README.md": 200,
    "model.py": 400,
    "train_lm.py": 200,
    "train_mlm.py": 200,
    "train_classifier.py": 240,
    "attention_maps.py": 240,
    "sample.py": 220,
    "compare.py": 220,
    "baselines.py": 220,
    "beyond/train_seq2seq.py": 230,
    "beyond/train_tlm.py": 230,
    "beyond/train_thread.py": 240,
}
LONGEST_COPY = 8  # lines in a row that two files may share


# -------------------------------------------------------------------------------- reading the files


@dataclass(frozen=True)
class Import:
    """An import. `name` is taken from `module`, or empty if the module itself is imported."""

    line: int
    module: str
    name: str
    alias: str  # "" without `as`
    local: str  # what the file calls it
    inside: bool  # inside a function


@dataclass(frozen=True)
class Source:
    path: str
    text: str

    @property
    def module(self):
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def group(self):
        """The key of this file in MAY_IMPORT and PACKAGES."""
        stem = self.path.removesuffix(".py")
        folder = self.path.split("/")[0] if "/" in stem else "top"
        return stem if stem in MAY_IMPORT else folder

    @cached_property
    def lines(self):
        return self.text.splitlines()

    @cached_property
    def tree(self):
        return ast.parse(self.text)

    @cached_property
    def is_script(self):
        """Whether the file does something when it is started as a program."""
        return any(
            isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
            for node in self.tree.body
        )

    @cached_property
    def imported_lines(self):
        """Numbers of all lines that belong to import statements."""
        return {
            line
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for line in range(node.lineno, node.end_lineno + 1)
        }


class Repository:
    """All Python files of a repository: `sources` without the tests, `tests`, and `files`, both."""

    def __init__(self, root):
        self.root = Path(root)
        found = sorted(self.root.glob("*.py"))
        for group in (*GROUPS, "tests"):
            found += sorted((self.root / group).rglob("*.py"))
        self.files = [
            Source(path.relative_to(self.root).as_posix(), path.read_text(encoding="utf-8"))
            for path in found
        ]
        self.tests = [file for file in self.files if file.path.startswith("tests/")]
        self.sources = [file for file in self.files if file not in self.tests]
        self.modules = {source.module: source for source in self.sources}
        self.found = {}  # {path: imports}

    def imports(self, file):
        """All imports of a file, in the order of its lines."""
        if file.path not in self.found:
            found = self.search(file, file.tree, False)
            self.found[file.path] = sorted(found, key=lambda one: one.line)
        return self.found[file.path]

    def search(self, file, parent, inside):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from (self.resolve(file, node, item, inside) for item in node.names)
            elif isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
                function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                yield from self.search(file, node, inside or function)

    def resolve(self, file, node, item, inside):
        """The Import of one name of an import statement."""
        module, name, local = item.name, "", item.name.split(".")[0]
        if isinstance(node, ast.ImportFrom):
            module, name, local = self.origin(file, node), item.name, item.name
            inner = f"{module}.{name}" if module else name
            if inner in self.modules:
                module, name = inner, ""
        alias = item.asname or ""
        return Import(node.lineno, module, name, alias, alias or local, inside)

    def origin(self, file, node):
        """The absolute name of the module behind `from`, also of a relative import."""
        if not node.level:
            return node.module
        package = file.path.split("/")[: -node.level]
        return ".".join([*package, *([node.module] if node.module else [])])

    def own(self, file):
        """The imports of modules of this repository."""
        return [one for one in self.imports(file) if one.module in self.modules]


# ------------------------------------------------------------------------------------- import rules


def import_order(repo):
    """Imports lead from the scripts to lab/, nets/, model.py and data/, never back or across."""
    found = []
    for source in repo.sources:
        for one in repo.own(source):
            allowed = MAY_IMPORT[source.group]
            if not any(
                one.module == group or one.module.startswith(group + ".") for group in allowed
            ):
                found.append(f"{source.path}:{one.line}: may not import {one.module}")
            elif repo.modules[one.module].is_script:
                found.append(f"{source.path}:{one.line}: imports the script {one.module}")
    return found


def foreign_packages(repo):
    """A group imports the standard library and the packages that PACKAGES gives it."""
    found = []
    for source in repo.sources:
        for one in repo.imports(source):
            package = one.module.split(".")[0]
            own = package in (*GROUPS, *TOP)
            if not own and package not in {*sys.stdlib_module_names, *PACKAGES[source.group]}:
                found.append(f"{source.path}:{one.line}: may not import {package}")
    return found


def import_cycles(repo):
    """No module imports itself, directly or through others."""
    needs = {
        source.module: {one.module for one in repo.own(source)} - {source.module}
        for source in repo.sources
    }

    def reachable(start):
        seen, todo = set(), [start]
        while todo:
            todo += needs[todo.pop()] - seen
            seen |= set(todo)
        return seen

    reached = {module: reachable(module) for module in needs}
    rings = {
        tuple(sorted(other for other in found if module in reached[other]))
        for module, found in reached.items()
        if module in found
    }
    return [f"import cycle: {', '.join(ring)}" for ring in sorted(rings)]


def imports_in_functions(repo):
    """Modules of this repository are imported at the top of a file."""
    return [
        f"{file.path}:{one.line}: imports {one.module} inside a function"
        for file in repo.files
        for one in repo.own(file)
        if one.inside
    ]


def reexports(repo):
    """A name is taken from the module that defines it, not from one that imports it.

    lab/__init__.py may collect names for notebooks, but no file here takes them from there.
    """
    borrowed = {}
    for source in repo.sources:
        names = {one.local for one in repo.imports(source)}
        borrowed[source.module] = names - defined_names(source.tree)
    found = []
    for source in repo.sources:
        imports = repo.own(source)
        for one in imports:
            if one.name in borrowed[one.module]:
                found.append(f"{source.path}:{one.line}: takes {one.name} from {one.module}")
        modules = {one.local: one.module for one in imports if not one.name}
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = modules.get(node.value.id)
                if module and node.attr in borrowed[module]:
                    found.append(f"{source.path}:{node.lineno}: takes {node.attr} from {module}")
        if source.path.endswith("/__init__.py") and source.path != "lab/__init__.py":
            used = {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}
            found += [
                f"{source.path}: imports {name} for others"
                for name in sorted(borrowed[source.module] - used)
            ]
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
        f"{file.path}:{one.line}: imports {one.module} as {one.alias}"
        for file in repo.files
        for one in repo.own(file)
        if one.alias and not one.name
    ]


# ---------------------------------------------------------------------------------- size and copies


def top_level_files(repo):
    """The top of the repository holds eight Python files."""
    there = {source.module for source in repo.sources if "/" not in source.path}
    return [f"{name}.py: missing" for name in sorted(TOP - there)] + [
        f"{name}.py: does not belong at the top" for name in sorted(there - TOP)
    ]


def too_many_lines(repo):
    """The files that a newcomer reads first are short."""
    found = []
    for path, limit in LINE_LIMITS.items():
        file = repo.root / path
        count = len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
        found += [f"{path}: {count} lines, at most {limit}"] * (count > limit)
    return found


def copied_passages(repo):
    """No two files share more than eight lines in a row, blank lines and imports aside."""
    length, places = LONGEST_COPY + 1, defaultdict(list)
    for source in repo.sources:
        lines = [
            (number, line.strip())
            for number, line in enumerate(source.lines, start=1)
            if line.strip() and number not in source.imported_lines
        ]
        for i in range(len(lines) - length + 1):
            passage = tuple(text for _, text in lines[i : i + length])
            places[passage].append((source.path, lines[i][0], i))
    shared = {
        (path, i, other, j): (line, at)
        for where in places.values()
        for (path, line, i), (other, at, j) in combinations(where, 2)
        if path != other
    }
    found = []
    for (path, i, other, j), (line, at) in sorted(shared.items()):
        if (path, i - 1, other, j - 1) not in shared:  # the first of passages that overlap
            more = 0
            while (path, i + more, other, j + more) in shared:
                more += 1
            found.append(f"{path}:{line} and {other}:{at}: {LONGEST_COPY + more} equal lines")
    return found


# ---------------------------------------------------------------------------------------- the tests


def imports_between_tests(repo):
    """Tests share code in helpers.py and fixtures in conftest.py, which nothing imports."""
    modules = {Path(test.path).stem for test in repo.tests}
    private = {name for name in modules if name.startswith("test_")} | {"conftest"}
    return [
        f"{test.path}:{one.line}: imports {one.module}"
        for test in repo.tests
        for one in repo.imports(test)
        if one.module.split(".")[-1] in private
    ]


def unknown_guarantees(repo):
    """Every test that docs/guarantees.md names exists."""
    tests = {
        test.path: {node.name for node in ast.walk(test.tree) if isinstance(node, ast.FunctionDef)}
        for test in repo.tests
    }
    text = (repo.root / "docs" / "guarantees.md").read_text(encoding="utf-8")
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?[^`]*`", line):
            if path not in tests:
                found.append(f"docs/guarantees.md:{number}: {path} does not exist")
            elif name and name not in tests[path]:
                found.append(f"docs/guarantees.md:{number}: {path} has no {name}")
    return found


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

def imported(module):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        importlib.import_module(module)
    return out.getvalue()

for module in {modules!r}:
    before = state()
    try:
        said = imported(module)
    except Exception as error:
        print(module + ": cannot be imported:", error)
        continue
    if said:
        print(module + ": prints", repr(said))
    after = state()
    for name in before:
        if before[name] != after[name]:
            print(module + ": changes", name)
"""


def noisy_imports(repo):
    """Importing a module prints nothing and changes no setting of this process."""
    code = WATCH.format(modules=sorted(repo.modules), hidden=(*EXTRAS, *RIVALS))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repo.root,
        env=os.environ | {"PYTHONPATH": str(repo.root)},
        capture_output=True,
        encoding="utf-8",
    )
    return (done.stdout + done.stderr).splitlines()


# ---------------------------------------------------------------------------------- this repository


RULES = (
    *(import_order, foreign_packages, import_cycles, imports_in_functions, reexports),
    *(renamed_modules, top_level_files, too_many_lines, copied_passages),
    *(imports_between_tests, unknown_guarantees),
)


@pytest.fixture(scope="module")
def repo():
    return Repository(ROOT)


@pytest.mark.parametrize("rule", (*RULES, noisy_imports), ids=lambda rule: rule.__name__)
def test_the_repository_follows_the_rule(rule, repo):
    complaints = rule(repo)
    assert not complaints, "\n".join(["", *complaints])  # one line for each


# ----------------------------------------------------------------------------- a made-up repository

FINE = {
    **{f"{name}.py": "" for name in TOP},
    **{f"{group}/__init__.py": "" for group in GROUPS},
    "nets/cross_entropy.py": "import math\n\nimport torch\n\nnats = math.log(torch.e)\n",
    "model.py": "import torch\n\nfrom nets.cross_entropy import nats\n\nx = nats * torch.ones(1)\n",
    "data/files.py": "import numpy as np\n\nfrom data import corpus\n\nx = np.add(corpus.n, 0)\n",
    "data/corpus.py": "n = 1\n",
    "lab/errors.py": "class UserError(Exception):\n    pass\n",
    "lab/flags.py": "from lab.errors import UserError\n\n\ndef check():\n    raise UserError\n",
    "lab/run.py": "import model\nfrom lab.flags import check\n\nx = model.x\ny = check\n",
    "lab/__init__.py": "from lab.run import x\n",
    "train_lm.py": "from lab.run import x\n\nif __name__ == '__main__':\n    print(x)\n",
    "studies/jobs.py": "jobs = ['train_lm.py']\n",
    "studies/nope.py": "from studies.jobs import jobs\n\n\ndef study():\n    return jobs\n",
    "beyond/export.py": "def save():\n    import safetensors\n\n    return safetensors\n",
    "tests/helpers.py": "import data.corpus\n\nn = data.corpus.n\n",
    "tests/data/test_corpus.py": "from helpers import n\n\n\ndef test_n():\n    assert n\n",
    "docs/guarantees.md": "held by `tests/data/test_corpus.py::test_n`\n",
    "README.md": "short\n",
}
PASSAGE = "".join(f"x{number} = {number}\n" for number in range(LONGEST_COPY + 1))


def build(root, **changed):
    """A made-up repository of these files; a content of None leaves a file out."""
    for path, content in (FINE | changed).items():
        if content is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content, encoding="utf-8")
    return Repository(root)


BROKEN = [
    (import_order, {"data/files.py": "import lab.errors\n"}, "data/files.py:1: may not import lab"),
    (import_order, {"model.py": "import nets\n"}, "model.py:1: may not import nets"),
    (
        import_order,
        {"studies/a.py": "import studies.b\n", "studies/b.py": FINE["train_lm.py"]},
        "studies/a.py:1: imports the script studies.b",
    ),
    (foreign_packages, {"model.py": "import numpy\n"}, "model.py:1: may not import numpy"),
    (import_cycles, {"lab/errors.py": "import lab.run\n"}, "lab.errors, lab.flags, lab.run"),
    (import_cycles, {"lab/flags.py": "from . import run\n"}, "lab.flags, lab.run"),
    (imports_in_functions, {"sample.py": "def f():\n    import model\n"}, "sample.py:2: imports"),
    (imports_in_functions, {"tests/a.py": "def f():\n    import model\n"}, "tests/a.py:2: imports"),
    (
        reexports,
        {"lab/run.py": "import lab.flags\nfrom lab import flags\nx = flags.UserError\n"},
        "lab/run.py:3: takes UserError from lab.flags",
    ),
    (reexports, {"sample.py": "from lab import x\n"}, "sample.py:1: takes x from lab"),
    (reexports, {"data/__init__.py": "from data.corpus import n\n"}, "data/__init__.py: imports n"),
    (renamed_modules, {"sample.py": "import model as models\n"}, "imports model as models"),
    (top_level_files, {"probe.py": ""}, "probe.py: does not belong at the top"),
    (top_level_files, {"compare.py": None}, "compare.py: missing"),
    (too_many_lines, {"sample.py": "x = 1\n" * 221}, "sample.py: 221 lines, at most 220"),
    (
        copied_passages,
        {"sample.py": PASSAGE + "z = 0\n", "nets/a.py": PASSAGE + "\nz = 0\n"},
        f": {LONGEST_COPY + 2} equal lines",
    ),
    (imports_between_tests, {"tests/a.py": "import test_b\n", "tests/test_b.py": ""}, "test_b"),
    (unknown_guarantees, {"docs/guarantees.md": "`tests/test_x.py::test_n`"}, "does not exist"),
    (unknown_guarantees, {"docs/guarantees.md": "a\n`tests/helpers.py::test_m`"}, ".md:2:"),
]


@pytest.mark.parametrize(
    "rule, changed, complaint", BROKEN, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_broken_rule_is_reported(rule, changed, complaint, tmp_path):
    found = rule(build(tmp_path, **changed))
    assert found and any(complaint in line for line in found), found


def test_equal_imports_and_files_without_a_test_are_allowed(tmp_path):
    changed = {name: "import os\n" * 20 for name in ("sample.py", "compare.py")}
    changed["docs/guarantees.md"] = "`tests/data/test_corpus.py`"
    repo = build(tmp_path, **changed)
    assert copied_passages(repo) == unknown_guarantees(repo) == []


def test_an_import_with_side_effects_is_reported(tmp_path):
    loud = {
        "sample.py": "print('hello')\n",
        "compare.py": "import matplotlib\n\nmatplotlib.rcParams['font.size'] = 3\n",
        "baselines.py": "import torch\n\ntorch.set_default_dtype(torch.float64)\n",
        "attention_maps.py": "import signal\n\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
        "train_mlm.py": "import random\n\nrandom.seed(0)\n",
        "data/files.py": "import os\n\nos.environ['TOKENIZERS_PARALLELISM'] = '0'\n",
        "beyond/export.py": "import safetensors\n",
    }
    assert noisy_imports(build(tmp_path, **loud)) == [
        "attention_maps: changes signals",
        "baselines: changes torch",
        "beyond.export: cannot be imported: import of safetensors halted; None in sys.modules",
        "compare: changes rcparams",
        "data.files: changes environment",
        "sample: prints 'hello\\n'",
        "train_mlm: changes random",
    ]
