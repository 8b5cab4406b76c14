"""Downloads from a local server that sends wrong, cut, endless and redirected content."""

import errno
import hashlib
import http.server
import subprocess
import sys
import threading
import urllib.request

import pytest
from helpers import ROOT, contents

from data.corpora import speeches, wikitext
from data.download import download_files
from data.files import DataError

TEXT = b"Four score and seven years ago\n" * 20_000
FILES = {"train.txt": (len(TEXT), hashlib.sha256(TEXT).hexdigest())}


class Server(http.server.BaseHTTPRequestHandler):
    """Deliver the file in the way that the first part of the path names."""

    def do_GET(self):
        how = self.path.split("/")[1]
        self.server.asked.append(self.path)
        if how == "gone":
            return self.send_error(404)
        if how in ("elsewhere", "local"):
            self.send_response(302)
            place = "/good/train.txt" if how == "elsewhere" else "file:///etc/hostname"
            self.send_header("Location", place)
            return self.end_headers()
        odd = {"wrong": TEXT[::-1], "more": TEXT + b"x", "endless": TEXT * 100, "cut": TEXT[:-1]}
        body = odd.get(how, TEXT)
        self.send_response(200)
        self.send_header("Content-Length", str(len(TEXT if how == "cut" else body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass  # the client has closed the connection

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """server.address(how, ...) is a tuple of mirrors; server.asked lists the requested paths."""
    monkeypatch.setattr("data.download.SCHEMES", ("http",))
    monkeypatch.setattr("data.download.ATTEMPTS", 1)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as found:
        found.asked = []
        found.address = lambda *hows: tuple(
            f"http://127.0.0.1:{found.server_port}/{how}/" for how in hows
        )
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        found.shutdown()


@pytest.mark.parametrize(
    "hows", [["good"], ["wrong", "good"], ["gone", "endless", "good"], ["cut", "more", "elsewhere"]]
)
def test_a_file_comes_from_the_first_mirror_that_has_it_right(hows, server, tmp_path):
    assert download_files(tmp_path / "data", FILES, server.address(*hows)) == tmp_path / "data"
    assert contents(tmp_path) == {"data/train.txt": TEXT}
    assert (tmp_path / "data" / "train.txt").stat().st_mode & 0o044 == 0o044  # all may read it
    asked = len(server.asked)
    download_files(tmp_path / "data", FILES, server.address(*hows))
    assert len(server.asked) == asked  # an existing file is not downloaded again


WHY = {"wrong": "wrong sha256", "more": "more than", "endless": "more than", "gone": "Not Found"}
WHY |= {"cut": "only 619,999 of 620,000 bytes", "local": "file"}


@pytest.mark.parametrize("how, why", WHY.items())
def test_a_file_other_than_the_pinned_one_gets_no_name(how, why, server, tmp_path):
    with pytest.raises(DataError, match=f"train.txt could not be downloaded.*{why}.*--data PATH"):
        download_files(tmp_path, FILES, server.address(how))
    assert contents(tmp_path) == {}


def test_an_unreachable_mirror_is_asked_again(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr("data.download.SCHEMES", ("http",))
    monkeypatch.setattr("time.sleep", waited.append)
    with pytest.raises(DataError, match="127.0.0.1:9: .*check the network") as error:
        download_files(tmp_path, FILES, ("http://127.0.0.1:9/",))
    assert waited == [0, 1, 2] and str(error.value).count("127.0.0.1:9") == 1


@pytest.mark.parametrize("folder", ["", "data"])  # code that another user has installed
def test_a_folder_that_cannot_be_written_is_named_first(folder, server, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(DataError, match="cannot be written.*--data PATH"):
        download_files(tmp_path / folder, FILES, server.address("good"))
    assert contents(tmp_path) == {} and server.asked == []


def test_only_https_is_allowed(server, tmp_path, monkeypatch):
    monkeypatch.setattr("data.download.SCHEMES", ("https",))
    with pytest.raises(DataError, match="http:// is not allowed, only https"):
        download_files(tmp_path, FILES, server.address("good"))
    assert server.asked == []
    assert all(mirror.startswith("https://") for mirror in speeches.MIRRORS + wikitext.MIRRORS)


def test_a_redirect_to_another_scheme_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr("data.download.SCHEMES", ("https",))
    plain = urllib.request.HTTPHandler()  # the server seems to speak https, and redirects to http
    name = "urllib.request.HTTPSHandler.https_open"
    monkeypatch.setattr(name, lambda self, request: plain.http_open(request))
    address = server.address("elsewhere")[0].replace("http:", "https:")

    def absolute(self):
        self.send_response(302)
        self.send_header("Location", server.address("good")[0] + "train.txt")
        self.end_headers()

    monkeypatch.setattr(Server, "do_GET", absolute)
    with pytest.raises(DataError, match="http:// is not allowed"):
        download_files(tmp_path, FILES, (address,))
    assert contents(tmp_path) == {}


def test_a_file_altered_after_the_download_is_named(server, tmp_path):
    (tmp_path / "train.txt").write_bytes(TEXT[:-2])
    with pytest.raises(DataError, match="train.txt: its sha256 is not the pinned one; delete the"):
        download_files(tmp_path, FILES, server.address("good"))
    assert contents(tmp_path) == {"train.txt": TEXT[:-2]} and server.asked == []


def test_a_full_disk_leaves_no_part_of_a_file(server, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        download_files(tmp_path / "data", FILES, server.address("good"))
    assert contents(tmp_path) == {}


def test_four_processes_download_at_once(server, tmp_path):
    args = f"{str(tmp_path / 'data')!r}, {FILES!r}, {server.address('good')!r}"
    code = (
        f"from data import download; download.SCHEMES = ('http',); download.download_files({args})"
    )
    words, how = [sys.executable, "-c", code], dict(cwd=ROOT, stderr=subprocess.PIPE)
    started = [subprocess.Popen(words, **how) for _ in range(4)]
    target = tmp_path / "data" / "train.txt"
    while any(process.poll() is None for process in started):
        assert not target.exists() or target.read_bytes() == TEXT  # never a part of it
    assert [process.communicate()[1] for process in started] == [b""] * 4
    assert [process.returncode for process in started] == [0] * 4
    assert contents(tmp_path) == {"data/train.txt": TEXT}
