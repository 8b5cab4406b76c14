"""The exercises of a handout, from expected.pt: inputs, what solutions and mistakes return.

In a handout this file takes the place of course/known.py, and has the same functions.
"""

import functools
from pathlib import Path

import torch

from course.expectation import Expectation

FILE = Path(__file__).with_name("expected.pt")


class Stored:
    """Known mistakes by their messages, and sketches (M, K) of what they return in each case."""

    def __init__(self, messages, tensors):
        self.messages = messages
        self.tensors = tensors

    def sketches(self, number, rows):
        return self.tensors[number][rows]


@functools.cache
def load():
    return torch.load(FILE, weights_only=True)


def choose_exercises(words):
    """Return the exercises given by name or number; without words, all of them. Raises ValueError
    for a word that is neither."""
    exercises = load()["exercises"]
    numbered = {str(exercise["number"]): name for name, exercise in exercises.items()}
    names = [numbered.get(word, word) for word in words]
    for name in names:
        if name not in exercises:
            raise ValueError(f"{name}: no such exercise; there are {', '.join(exercises)}")
    return names or list(exercises)


def number_of(name):
    return load()["exercises"][name]["number"]


def file_of(name):
    return load()["exercises"][name]["file"]


def functions_of(name):
    return load()["exercises"][name]["functions"]


def expect(function, seed):
    """Return the stored Expectation of a function, whatever the seed."""
    stored = load()["expectations"][function]
    messages = stored["messages"]
    pairs = [f"{messages[i]} Also: {messages[j]}" for i, j in stored["pairs"]]
    return Expectation(
        function,
        stored["cases"],
        stored["results"],
        stored["gradients"],
        Stored(messages, stored["mistakes"]),
        Stored(pairs, stored["sketches_of_pairs"]),
    )
