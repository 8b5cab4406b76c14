"""Write tables for a write-up: the same cells as Markdown and as LaTeX.

A table is a header and rows of strings. `**12.3**` is a bold cell. Two forms are special: a pair
("perplexity", "obama") in the header stands below a common heading "perplexity" in LaTeX, and None
instead of a row draws a line in LaTeX.
"""

import re
import statistics
from itertools import groupby

from data.files import write_text


def write(stem, header, rows, caption, left=1, label="", more=""):
    """Write stem.md and stem.tex, and return the Markdown, which is readable as plain text.

    left: number of left-aligned columns. label: name in LaTeX, after "tab:"; by default the file's
    name. more: a paragraph for the Markdown alone, below the caption.
    """
    text = f"{markdown(header, rows, left)}\n{caption}\n" + (f"\n{more}\n" if more else "")
    write_text(stem.with_suffix(".md"), text)
    label = label or stem.name
    write_text(stem.with_suffix(".tex"), latex(header, rows, caption, label, left))
    return text


def markdown(header, rows, left=1):
    """Return a Markdown table whose columns are also aligned as plain text."""
    header = flat(header)
    cells = [[cell.replace("|", r"\|") for cell in row] for row in [header, *rows] if row]
    lines = align(cells, left)
    rule = ["-" * len(cell) for cell in lines[0][:left]]
    rule += ["-" * (len(cell) - 1) + ":" for cell in lines[0][left:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in [lines[0], rule, *lines[1:]])


def flat(header):
    """Return a header with each pair as one string: "perplexity obama"."""
    return [cell if isinstance(cell, str) else " ".join(cell) for cell in header]


def align(lines, left=1):
    """Return rows of cells padded to the widths of their columns; the first `left` columns are
    left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [
        [c.ljust(n) if i < left else c.rjust(n) for i, (c, n) in enumerate(zip(line, widths))]
        for line in lines
    ]


def latex(header, rows, caption, label, left):
    """Return a LaTeX table, no wider than the text. In a text of two columns, a table of more than
    five columns spans both."""
    table = "table*" if len(header) > 5 else "table"
    names = [cell if isinstance(cell, str) else cell[1] for cell in header]
    lines = [
        r"% \usepackage{booktabs, graphicx}",
        rf"\begin{{{table}}}",
        r"\centering",
        rf"\caption{{{escaped(caption)}}}",
        rf"\label{{tab:{label}}}",
        r"\smallskip",
        r"\small",
        r"\setlength{\tabcolsep}{4pt}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{'l' * left}{'r' * (len(header) - left)}@{{}}}}",
        r"\toprule",
        *common_headings(header),
        latex_row(names),
        r"\midrule",
        *(latex_row(row) if row else r"\midrule" for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        rf"\end{{{table}}}",
    ]
    return "\n".join(lines) + "\n"


def common_headings(header):
    """Return the LaTeX lines above the header: each common heading, and a rule below it."""
    cells, rules, column = [], [], 1
    for heading, group in groupby(header, lambda cell: "" if isinstance(cell, str) else cell[0]):
        n = len(list(group))
        if heading:
            cells.append(rf"\multicolumn{{{n}}}{{c}}{{{escaped(heading)}}}")
            rules.append(rf"\cmidrule(lr){{{column}-{column + n - 1}}}")
        else:
            cells += [""] * n
        column += n
    return [" & ".join(cells) + r" \\", " ".join(rules)] if rules else []


def latex_row(cells):
    bold = [re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", escaped(cell)) for cell in cells]
    return " & ".join(bold) + r" \\"


def escaped(text):
    """Return the text as LaTeX prints it."""
    special = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "≥": r"$\geq$",
        "−": "$-$",
        "–": r"\textendash{}",
        "<": "$<$",
        ">": "$>$",
        "|": r"\textbar{}",
    } | {c: "\\" + c for c in "&%$#_{}"}
    text = re.sub("-(?=-)", "-{}", "".join(special.get(c, c) for c in text))
    return re.sub("`(.+?)`", r"\\texttt{\1}", text)


def spread(values, digits=1):
    """Return "mean ± sample standard deviation", or a single value without a deviation."""
    mean = f"{statistics.fmean(values):,.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else mean
