"""Judge students' functions: right, a known mistake, or the first number that differs. Print it."""

import json

import torch

from course.known import choose_exercises, expect, file_of, functions_of, number_of
from course.language import Language
from course.observe import settings_kept
from course.worker import observe_in_process


def judge(paths, seed=0, seconds=60, folder=None, user=""):
    """Return {exercise: {function: Verdict}} of answers {exercise: path}.

    They run in another process, in this folder, for at most so many seconds per function. user:
    whose process it is, "": ours.
    """
    tasks = []
    for name, path in paths.items():
        tasks += [(path, function) for function in functions_of(name)]
    verdicts = {name: {} for name in paths}
    with settings_kept():
        torch.set_num_threads(1)  # for tiny tensors
        expectations = {function: expect(function, seed) for _, function in tasks}
        cases = {function: expected.cases for function, expected in expectations.items()}
        observations = observe_in_process(tasks, cases, seconds, folder, user)
        for name in paths:
            for function in functions_of(name):
                verdict = expectations[function].judge(observations[function])
                verdicts[name][function] = verdict
    return verdicts


def find_answers(folder, words=()):
    """Return {exercise: path} of the exercises given by name or number, or else of all that a
    folder has."""
    paths = {}
    for name in choose_exercises(words):
        path = folder / file_of(name)
        if words or path.exists():
            paths[name] = path
    return paths


def report(paths, with_numbers, as_json=False, language="en"):
    """Judge answers {exercise: path} and print the verdicts. Return whether all are done."""
    translator = Language(language)
    verdicts = {}
    for name, judged in judge(paths).items():
        verdicts[name] = {f: translator.translate_verdict(v) for f, v in judged.items()}
    unfinished = [name for name in paths if not is_done(verdicts[name])]
    if as_json:
        print_json(paths, verdicts)
        return not unfinished
    for name in paths:
        print_exercise(name, verdicts[name], with_numbers, translator)
    n_done = len(paths) - len(unfinished)
    count = translator.translate(f"{n_done} of {len(paths)} done")
    print(f"\n[{'#' * n_done}{'-' * len(unfinished)}] {count}")
    if unfinished:
        print(translator.translate(f"Next: {paths[unfinished[0]]}"))
    return not unfinished


def is_done(verdicts):
    """Return whether all functions of an exercise are done."""
    return all(verdict.status == "done" for verdict in verdicts.values())


def print_exercise(name, verdicts, with_numbers, translator):
    """Print a line on each function that is not done. Below it, an error's traceback and, if asked
    for, numbers."""
    label = f"{number_of(name):>3} {name:<11}"
    missing = [f for f, verdict in verdicts.items() if verdict.status == "not begun"]
    messages = []
    for verdict in verdicts.values():
        if not verdict.message or verdict.message in messages:
            continue  # what is wrong with a file is said of all its functions
        messages.append(verdict.message)
        print(label, verdict.message)
        if verdict.detail and (with_numbers or verdict.status == "error"):
            print(f"\n{verdict.detail.rstrip()}\n")
    if missing:
        print(label, translator.translate(f"{', '.join(missing)} not begun"))
    elif not messages:
        print(label, translator.translate("done"))


def print_json(paths, verdicts):
    """Print the verdicts: for each exercise, whether it is done and what is said of a function."""
    exercises = []
    for name, path in paths.items():
        functions = {f: verdict._asdict() for f, verdict in verdicts[name].items()}
        exercises.append(
            {
                "number": number_of(name),
                "name": name,
                "file": str(path),
                "done": is_done(verdicts[name]),
                "functions": functions,
            }
        )
    print(json.dumps({"exercises": exercises}, indent=2))
