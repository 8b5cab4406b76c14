"""Tables for a write-up: the same cells as Markdown and as LaTeX."""

import statistics

from data.files import write_text


def write(stem, header, rows, caption):
    """Write stem.md and stem.tex (booktabs). header and rows are lists of strings, the first column left-aligned, a cell
    in ** is bold. Returns the Markdown, which reads as plain text too."""
    text = f"{markdown(header, rows)}\n{caption}\n"
    write_text(stem.with_suffix(".md"), text)
    write_text(stem.with_suffix(".tex"), latex(header, rows, caption, stem.name))
    return text


def markdown(header, rows):
    lines = [[cell.replace("|", r"\|") for cell in line] for line in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines = [
        [
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ]
        for line in lines
    ]
    lines.insert(
        1, ["-" * (width - 1) + ":" if i else "-" * width for i, width in enumerate(widths)]
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(header, rows, caption, label):
    def cell(text):
        bold = text.startswith("**")
        text = escaped(text.replace("**", "")).replace("–", "--")
        return rf"\textbf{{{text}}}" if bold else text

    lines = [" & ".join(map(cell, line)) + r" \\" for line in [header, *rows]]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(caption)}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def escaped(text):
    """Text as LaTeX prints it."""
    special = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "≥": r"$\geq$",
    } | {c: "\\" + c for c in "&%$#_{}"}
    return "".join(special.get(c, c) for c in text)


def spread(values, digits=1):
    """ "mean ± sample standard deviation"; of a single value just that."""
    mean = f"{statistics.fmean(values):,.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else mean
