"""Write tables, a header and rows of strings, as plain text, Markdown and LaTeX.

`**12.3**` is a bold cell; None in place of a row draws a line in LaTeX.
"""

import re
import statistics

from data.files import write_text

LATEX = {letter: "\\" + letter for letter in "&%$#_{}"}
LATEX |= {letter: f"${letter}$" for letter in "<>|"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"±": r"$\pm$", "–": r"\textendash{}"}


def write(stem, header, rows, caption, left=1, note=""):
    """Write a table as stem.md, with a note below, and as stem.tex; return the Markdown.

    left: number of columns that are left-aligned, as the others are numbers."""
    text = f"{to_markdown(header, rows, left)}\n{caption}\n"
    if note:
        text += f"\n{note}\n"
    write_text(stem.with_suffix(".md"), text)
    write_text(stem.with_suffix(".tex"), to_latex(header, rows, caption, stem.name, left))
    return text


def align(rows, left=1, between="  "):
    """Return rows of cells as lines with columns of equal width, `left` of them left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths)]
        cells[:left] = [cell.ljust(width) for cell, width in zip(row[:left], widths)]
        lines.append(between.join(cells))
    return lines


def to_markdown(header, rows, left=1):
    """Return a Markdown table whose columns are also aligned as plain text."""
    rule = ["---"] * left + ["--:"] * (len(header) - left)
    table = []
    for row in [header, rule, *rows]:
        if row is not None:
            table.append([cell.replace("|", r"\|") for cell in row])
    return "".join(f"| {line} |\n" for line in align(table, left, " | "))


def to_latex(header, rows, caption, label, left=1):
    """Return a LaTeX table with the lines of booktabs, no wider than the text."""
    columns = "l" * left + "r" * (len(header) - left)
    label = re.sub(r"[^\w.-]+", "-", label)  # % and braces would not compile
    body = []
    for row in [header, None, *rows]:
        if row is None:
            body.append(r"\midrule")
        else:
            body.append(" & ".join(map(escape, row)) + r" \\")
    lines = [
        r"% \usepackage{booktabs, graphicx}",
        r"\begin{table}",
        rf"\centering\caption{{{escape(caption)}}}\label{{tab:{label}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape(text):
    """Return the text as LaTeX prints it, with **bold**."""
    text = "".join(LATEX.get(letter, letter) for letter in text)
    text = re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)
    return re.sub(r"^[\[*]", r"{\g<0>}", text)  # else \midrule or \\ would read an argument


def spread(values, digits=1):
    """Return "mean ± sample standard deviation", or a single value without a deviation."""
    mean = f"{statistics.fmean(values):,.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values):,.{digits}f}"
