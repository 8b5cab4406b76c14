"""Turn the Markdown of a report into one HTML page that needs no other file and no network.

It understands what the studies write: headings, paragraphs, lists, tables, figures, and an italic
caption below a table or figure; in a text bold, italics, code, links, and a backslash before a
character that stands for itself. Everything else is shown as it is.
"""

import base64
import html
import re
import struct

from data.files import MEGABYTE, read_bytes

LIMIT = 64 * MEGABYTE
MARKS = re.compile(
    r"\\(?P<character>[^\w\s]|_)"
    r"|`(?P<code>[^`]+)`"
    r"|\*\*(?P<bold>(?:\\.|[^*\\])+)\*\*"
    r"|\*(?P<italic>(?! )(?:\\.|[^*\\])+)(?<! )\*"
    r"|\[(?P<label>(?:\\.|[^\]\\])+)\]\((?P<url>[^()\s]+)\)"
    r"|(?P<plain>[\s\S])"
)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:;
  style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --text: #1d2025; --soft: #5a616d; --line: #b9bfc8;
  --page: #ffffff; --link: #2a5f96; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --text: #e8eaee; --soft: #a6adb9; --line: #4a515c; --page: #14161a; --link: #8fc0f2; }}
}}
body {{ margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 50rem; color: var(--text);
  background: var(--page); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }}
h1 {{ font-size: 1.7rem; line-height: 1.2; }}
h2 {{ font-size: 1.35rem; margin: 3rem 0 .5rem; border-bottom: 1px solid var(--line); }}
h3 {{ font-size: 1.1rem; margin: 2rem 0 .5rem; }}
p {{ margin: .6rem 0; }}
a {{ color: var(--link); }}
code {{ font-size: .9em; }}
figure {{ margin: 1.2rem 0; }}
figcaption {{ margin-top: .5rem; color: var(--soft); font-size: .9rem; }}
img {{ display: block; max-width: 100%; height: auto; background: #fff; }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums;
  border-top: 2px solid var(--text); border-bottom: 2px solid var(--text); }}
th, td {{ padding: .2rem .55rem; text-align: left; vertical-align: top; }}
th {{ border-bottom: 1px solid var(--text); }}
.scroll {{ overflow-x: auto; }}
@media (min-width: 55rem) {{ /* a wide table may reach into the right margin */
  .scroll {{ width: max-content; max-width: calc(50vw + 23rem); }}
}}
.number {{ text-align: right; }}
td.number {{ white-space: nowrap; }}
@media print {{
  :root {{ --text: #000; --soft: #333; --line: #999; --page: #fff; --link: #000; }}
  body {{ max-width: none; padding: 0; font-size: 10pt; }}
  h2, h3 {{ break-after: avoid; }}
  figure {{ break-inside: avoid; }}
  table {{ font-size: 8pt; }}
  th, td {{ padding: .1rem .3rem; }}
  .scroll {{ overflow: visible; }}
  img {{ max-height: 22cm; object-fit: contain; object-position: left; }}
}}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def make_page(markdown, folder):
    """Return the HTML of a report in `folder`, whose figures become part of it."""
    lines = []
    for block in re.split(r"\n\s*\n", markdown.strip()):
        caption = re.fullmatch(r"\*([^*].*)\*", block)
        if caption and lines[-1].endswith("</figure>"):
            words = f"<figcaption>{inline(caption[1])}</figcaption></figure>"
            lines[-1] = lines[-1].removesuffix("</figure>") + words
        else:
            lines.append(element(block, folder))
    title = re.sub("<[^>]*>", "", lines[0])
    return PAGE.format(title=title, body="\n".join(lines))


def element(block, folder):
    """Return the HTML element of a heading, a figure, a table, a list or a paragraph."""
    if heading := re.fullmatch(r"(#{1,3}) (.*)", block):
        level = len(heading[1])
        return f"<h{level}>{inline(heading[2])}</h{level}>"
    if figure := re.fullmatch(r"!\[(.*)\]\((.*)\)", block):
        alt = re.sub("<[^>]*>", "", inline(figure[1]))
        return f'<figure><img {source(folder / figure[2])} alt="{alt}"></figure>'
    if block.startswith("| "):
        return f'<figure><div class="scroll">{table(block)}</div></figure>'
    if block.startswith("- "):
        items = (f"<li>{inline(item)}</li>" for item in block[2:].split("\n- "))
        return f"<ul>{''.join(items)}</ul>"
    return f"<p>{inline(block)}</p>"


def source(path):
    """Return the attributes of an <img> that holds a PNG file and shows it in the size it was drawn
    for. Raises DataError if it cannot be read."""
    content = read_bytes(path, LIMIT, f"delete {path.parent} and repeat the command")
    url = f'src="data:image/png;base64,{base64.b64encode(content).decode()}"'
    _, found, density = content.partition(b"pHYs")
    if not found:
        return url
    pixels, per_meter = struct.unpack(">I", content[16:20])[0], struct.unpack(">I", density[:4])[0]
    return f'{url} width="{pixels / per_meter / 0.0254 * 96:.0f}"'


def table(block):
    """Return a Markdown table as HTML, with the alignment of its columns."""
    header, rule, *rows = (split_row(line) for line in block.splitlines())
    numeric = [' class="number"' if dashes.endswith(":") else "" for dashes in rule]

    def row(cells, tag):
        shown = zip(cells, numeric)
        return "".join(f"<{tag}{about}>{inline(cell)}</{tag}>" for cell, about in shown)

    body = "\n".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    return (
        f"<table>\n<thead><tr>{row(header, 'th')}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    )


def split_row(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def inline(text):
    """Return a text as HTML: its marks as elements, everything else escaped."""
    return "".join(map(marked, MARKS.finditer(text)))


def marked(mark):
    kind, content = mark.lastgroup, mark[mark.lastgroup]
    if kind == "url":
        return f'<a href="{html.escape(content)}">{inline(mark["label"])}</a>'
    if kind == "code":
        return f"<code>{html.escape(content)}</code>"
    if kind in ("character", "plain"):
        return html.escape(content)
    tag = {"bold": "strong", "italic": "em"}[kind]
    return f"<{tag}>{inline(content)}</{tag}>"
