"""Write what every study leaves: result.json, a report as Markdown and as a page, the last line."""

import re
import time

from data.files import printable, write_json, write_text
from lab.command import typed_command
from lab.machine import git_revision
from studies.page import make_page


def finish(flags, out, started, result, files):
    """Write result.json, with the seconds since `started` and the command; print what there is."""
    seconds = time.perf_counter() - started
    about = {"seconds": round(seconds, 1), "command": typed_command(flags)}
    write_json(out / "result.json", result | about)
    print(f"{', '.join(files)} and result.json; {seconds:.0f} s, {out}")


def write_report(flags, out, title, parts):
    """Write report.md and report.html: a title, the command, and parts in page.py's Markdown."""
    made = f"Made by `{typed_command(flags)}` at revision {git_revision()}."
    text = "\n\n".join(part.strip() for part in (f"# {title}", made, *parts)) + "\n"
    write_text(out / "report.md", text)
    write_text(out / "report.html", make_page(text, out))


def picture(path, caption):
    """Return a figure for a report, with its caption below."""
    return f"![{caption}]({path})\n\n*{caption}*"


def read_table(path):
    """Return a Markdown table that another script wrote."""
    return path.read_text(encoding="utf-8")


def literal(text, most=200):
    """Return one line of Markdown that shows any text as it is; lab/tables.py escapes its `|`."""
    return re.sub(r"([\\`*_\[\]<>&~$!])", r"\\\1", printable(text, most))
