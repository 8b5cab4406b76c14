"""Download files safely: over https, of the pinned size and sha256, and never half-written."""

import hashlib
import http.client
import os
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from data.files import DataError, write_whole


def download(folder, files, mirrors, schemes=("https",), attempts=3):
    """Download the missing files from the first mirror that has them, and return the folder.

    files: {name: (size in bytes, sha256)}. A file gets its name only when it is complete and its
    sha256 is right, so several processes may download at once. schemes: those allowed for an
    address and its redirects. Raises DataError for an existing file with another sha256, and if no
    mirror delivers.
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
        content = fetch(name, size, digest, mirrors, schemes, attempts)
        # In a folder of its own, since another process may download the same file
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as own:
            write_whole(Path(own, name), content)
            os.replace(Path(own, name), target)
    return folder


def fetch(name, size, digest, mirrors, schemes, attempts):
    """Return the bytes of one file, after up to `attempts` per mirror. Raises DataError.

    A mirror that sends wrong content is not asked again.
    """
    failures = []
    for mirror in mirrors:
        address = urllib.parse.urlsplit(mirror + name)
        for attempt in range(attempts):
            try:
                content = read(mirror + name, size, schemes)
                if len(content) < size:
                    raise OSError(f"only {len(content):,} of {size:,} bytes came")
            except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
                reason = getattr(error, "reason", None) or str(error) or type(error).__name__
                failures.append(f"{address.netloc}: {reason}")
                time.sleep(attempt)
                continue
            if hashlib.sha256(content).hexdigest() == digest:
                return content
            wrong = f"more than {size:,} bytes" if len(content) > size else "wrong sha256"
            failures.append(f"{address.netloc}: {wrong}")
            break
    raise DataError(
        f"{name} could not be downloaded ({'; '.join(dict.fromkeys(failures))}); "
        "check the network, or get the files another way and pass their folder: --data PATH"
    )


def read(address, size, schemes):
    """Return the content of an address, at most one byte more than `size`.

    Raises OSError or HTTPException.
    """

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, request, answer, code, message, headers, new):
            check_scheme(new, schemes)
            return super().redirect_request(request, answer, code, message, headers, new)

    check_scheme(address, schemes)
    with urllib.request.build_opener(Redirects).open(address, timeout=20) as answer:
        return answer.read(size + 1)


def check_scheme(address, schemes):
    """Raise URLError unless the address begins with one of the schemes."""
    scheme = urllib.parse.urlsplit(address).scheme
    if scheme not in schemes:
        raise urllib.error.URLError(f"{scheme}:// is not allowed, only {', '.join(schemes)}")


def sha256(path):
    """Return the sha256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
