"""Download files safely: over https, of the pinned size and sha256, and never half-written."""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from data.files import DataError, write_whole

SCHEMES = ("https",)  # allowed for an address and its redirects
ATTEMPTS = 3  # per mirror


def download_files(folder, files, mirrors):
    """Download the missing files from the first mirror that has them, and return the folder.

    files: {name: (size in bytes, sha256)}. A file gets its name only when it is complete and its
    sha256 is right, so several processes may download at once. Raises DataError for an existing
    file with another sha256, and if no mirror delivers.
    """
    folder = Path(folder)
    missing = not all((folder / name).exists() for name in files)
    if missing and not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        raise DataError(
            f"{folder}: cannot be written, so nothing can be downloaded there; ask its owner to "
            "download the files, or pass the folder of a copy: --data PATH"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, (size, digest) in files.items():
        target = folder / name
        if target.exists():
            if sha256(target) != digest:
                raise DataError(
                    f"{target}: its sha256 is not the pinned one; "
                    "delete the file to download it again"
                )
            continue
        print(f"downloading {target} ...", flush=True)
        content = fetch(name, size, digest, mirrors)
        own = folder / f".{name}.{os.getpid()}"  # another process may download the same file
        write_whole(own, content)
        os.replace(own, target)
    return folder


def fetch(name, size, digest, mirrors):
    """Return the bytes of one file. A mirror that sends wrong content is not asked again."""
    failures = []
    for mirror in mirrors:
        address = urllib.parse.urlsplit(mirror + name)
        for attempt in range(ATTEMPTS):
            try:
                content = read(mirror + name, size)
                if len(content) < size:
                    raise OSError(f"only {len(content):,} of {size:,} bytes came")
            except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
                reason = getattr(error, "reason", None) or str(error) or type(error).__name__
                failures.append(f"{address.netloc}: {reason}")
                time.sleep(attempt)
                continue
            if hashlib.sha256(content).hexdigest() == digest:
                return content
            problem = f"more than {size:,} bytes" if len(content) > size else "wrong sha256"
            failures.append(f"{address.netloc}: {problem}")
            break
    raise DataError(
        f"{name} could not be downloaded ({'; '.join(dict.fromkeys(failures))}); "
        "check the network, or get the files another way and pass their folder: --data PATH"
    )


def read(address, size):
    """Return at most size + 1 bytes of an address. Raises OSError or HTTPException."""
    with urllib.request.build_opener(CheckScheme).open(address, timeout=20) as answer:
        return answer.read(size + 1)


class CheckScheme(urllib.request.BaseHandler):
    """Refuses an address, or that of a redirect, whose scheme is not one of SCHEMES."""

    def default_open(self, request):  # urllib calls it before it opens an address
        if request.type not in SCHEMES:
            allowed = ", ".join(SCHEMES)
            raise urllib.error.URLError(f"{request.type}:// is not allowed, only {allowed}")


def sha256(path):
    """Return the sha256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
