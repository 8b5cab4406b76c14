"""Write tables, a header and rows of strings, as plain text, Markdown and LaTeX.

`**12.3**` is a bold cell; None in place of a row draws a line in LaTeX.
"""

import re
import statistics

from data.files import write_text

LATEX = {c: "\\" + c for c in "&%$#_{}"} | {c: f"${c}$" for c in "<>|"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {"±": r"$\pm$", "–": r"\textendash{}"}


def write(stem, header, rows, caption, left=1, more=""):
    """Write stem.md, with a paragraph more, and stem.tex; return the Markdown."""
    text = f"{markdown(header, rows, left)}\n{caption}\n" + (f"\n{more}\n" if more else "")
    write_text(stem.with_suffix(".md"), text)
    write_text(stem.with_suffix(".tex"), latex(header, rows, caption, stem.name, left))
    return text


def align(rows, left=1, between="  "):
    """Return rows of cells as lines with columns of equal width, `left` of them left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    sides = [str.ljust] * left + [str.rjust] * len(widths)
    return [between.join(side(*c) for side, *c in zip(sides, row, widths)) for row in rows]


def markdown(header, rows, left=1):
    """Return a Markdown table whose columns are also aligned as plain text."""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in [header, *rows] if row]
    rule = ["---" if i < left else "--:" for i in range(len(header))]
    return "".join(f"| {line} |\n" for line in align([cells[0], rule, *cells[1:]], left, " | "))


def latex(header, rows, caption, label, left=1):
    """Return a LaTeX table with the lines of booktabs, no wider than the text."""
    columns, table = "l" * left + "r" * (len(header) - left), [header, None, *rows]
    label = re.sub(r"[^\w.-]+", "-", label)  # % and braces would not compile
    lines = [
        r"% \usepackage{booktabs, graphicx}",
        r"\begin{table}",
        rf"\centering\caption{{{escaped(caption)}}}\label{{tab:{label}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        *(" & ".join(map(escaped, row)) + r" \\" if row else r"\midrule" for row in table),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text):
    """Return the text as LaTeX prints it, with **bold**."""
    text = "".join(LATEX.get(c, c) for c in text)
    text = re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)
    return re.sub(r"^[\[*]", r"{\g<0>}", text)  # else \midrule or \\ would read an argument


def spread(values, digits=1):
    """Return "mean ± sample standard deviation", or a single value without a deviation."""
    mean = f"{statistics.fmean(values):,.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else mean
