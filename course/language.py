"""The check's sentences in another language, from a table such as mistakes.zh.md.

A finished sentence is translated when it is printed. What has no translation stays English.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
ENTRY = re.compile(r"^- (.+)\n  (.+)$", re.MULTILINE)  # a sentence, below it its translation
PLACE = re.compile(r"\{(\w+)\}")
FORMS = {  # what stands in a place of this name; in others anything
    "function": r"[a-z_]\w*",
    "functions": r"[\w, ]+",
    "line": r"\d+",
    "error": r"[\w.]*[A-Z][\w.]*",
}
TRANSLATED = ("sentence", "second")  # places whose words are translated too


def languages():
    """Return the names of all languages: English, and those that have a table here."""
    return ["en", *sorted(path.name.split(".")[1] for path in FOLDER.glob("mistakes.*.md"))]


def read_table(language):
    """Return {section: {English sentence: translation}} of a language's table."""
    text = (FOLDER / f"mistakes.{language}.md").read_text(encoding="utf-8")
    sections = {}
    for section in text.split("\n## ")[1:]:
        name = section.partition("\n")[0]
        sections[name] = dict(ENTRY.findall(section))
    return sections


class Language:
    """Translates sentences. Those of the section `check` have named places: {sentence}."""

    def __init__(self, name="en"):
        self.sentences = {}
        self.patterns = []  # (pattern, translation), in the order in which they are tried
        if name == "en":
            return
        sections = read_table(name)
        for sentence, translation in sections.pop("check").items():
            if PLACE.search(sentence):
                self.patterns.append((compile_pattern(sentence), translation))
            else:
                self.sentences[sentence] = translation
        for mistakes in sections.values():
            self.sentences.update(mistakes)

    def translate(self, sentence):
        """Return the translation of a sentence, and of the sentences in it."""
        if sentence in self.sentences:
            return self.sentences[sentence]
        for pattern, translation in self.patterns:
            match = pattern.fullmatch(sentence)
            if match:
                words = match.groupdict()
                for name in words.keys() & TRANSLATED:
                    words[name] = self.translate(words[name])
                return translation.format(**words)
        return sentence

    def translate_verdict(self, verdict):
        """Return a Verdict with a translated message and detail; a traceback stays."""
        message = self.translate(verdict.message)
        if verdict.status == "error":
            return verdict._replace(message=message)
        lines = [self.translate(line) for line in verdict.detail.split("\n")]
        return verdict._replace(message=message, detail="\n".join(lines))


def compile_pattern(sentence):
    """Return the regular expression of a sentence with named places."""
    pattern = ""
    for i, part in enumerate(PLACE.split(sentence)):
        if i % 2:  # the name of a place
            pattern += f"(?P<{part}>{FORMS.get(part, '.+?')})"
        else:
            pattern += re.escape(part)
    return re.compile(pattern)
