"""Download the files of a named corpus, and check each by its sha256."""

from pathlib import Path

import torch

from data.files import UserError, sha256


def download(name, files, mirrors):
    """Return the folder data/NAME with files {name: sha256}, each downloaded from the first mirror
    that delivers it. Raises UserError if none does, and for a file with another sha256."""
    folder = Path(__file__).parent / name
    for file, digest in files.items():
        download_file(folder / file, digest, [mirror + file for mirror in mirrors])
    return folder


def download_file(path, digest, urls):
    """Download a file, unless it is there, from the first URL that delivers it with this sha256.
    Raises UserError if none does, or if the file that is there has another one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    problems = []
    for url in urls:
        if path.exists():
            break
        print(f"downloading {path} ...", flush=True)
        try:  # the file gets its name when it is complete and its sha256 is right
            torch.hub.download_url_to_file(url, path, digest, progress=False)
        except (OSError, RuntimeError) as error:  # RuntimeError: another sha256
            host = url.split("/")[2]
            problems.append(f"{host}: {error!s:.80}")
    if not path.exists():
        remedy = "check the network, or give a folder with the files: --data PATH"
        raise UserError(f"{path}: cannot be downloaded ({'; '.join(problems)}); {remedy}")
    if sha256(path) != digest:
        raise UserError(f"{path}: its sha256 is not the pinned one; delete the file")
