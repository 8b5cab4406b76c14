"""Write what every study leaves: result.json, a report in Markdown, and the last line of output."""

import shlex
import sys
import time
from pathlib import Path

from data.files import write_json, write_text
from lab.machine import git_revision


def command():
    """Return the command line of this study, as it is typed from the repository root."""
    return shlex.join(["python", "-m", f"studies.{Path(sys.argv[0]).stem}", *sys.argv[1:]])


def finish(out, started, result, files):
    """Write result.json, with the seconds since `started` and the command; print what there is."""
    seconds = time.perf_counter() - started
    about = {"seconds": round(seconds, 1), "command": command()}
    write_json(out / "result.json", result | about)
    print(f"{out}: {', '.join(files)} and result.json; {seconds:.0f} s")


def write_report(out, title, parts):
    """Write report.md: a title, the command that made it, and the parts."""
    made = f"Made by `{command()}` at revision {git_revision()}."
    lines = [part.strip() for part in (f"# {title}", made, *parts)]
    write_text(out / "report.md", "\n\n".join(lines) + "\n")


def picture(path, caption):
    """Return a figure for a report, with its caption below."""
    return f"![{caption}]({path})\n\n*{caption}*"


def read_table(path):
    """Return a Markdown table that another script wrote."""
    return path.read_text(encoding="utf-8")
