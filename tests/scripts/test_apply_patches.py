"""Applying the patch series: exact or not at all."""

from __future__ import annotations

from pathlib import Path

import apply_patches
import pytest
from apply_patches import PatchError, apply_hunks, parse_patch, prepare, read_series, tree_digest
from fetch_upstream import NATIVE

SOURCE = "one\ntwo\nthree\nfour\nfive\n"
PATCH = "Subject: x\n--- a/src/a.txt\n+++ b/src/a.txt\n@@ -2,3 +2,4 @@\n two\n-three\n+THREE\n+3b\n four\n"


class Series:
    """A source tree, a patch folder and an output folder."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.patches, self.out = folder / "tree", folder / "patches", folder / "out"
        self.toml = folder / "upstream.toml"
        (self.tree / "ggml/include").mkdir(parents=True)
        (self.tree / "ggml/include/ggml.h").write_text("header\n")
        (self.tree / "src").mkdir()
        (self.tree / "src/a.txt").write_text(SOURCE)
        (self.tree / "src/b.txt").write_text("b\n")
        self.patches.mkdir()
        self.toml.write_text(
            'package = "p"\nversion = "1"\nsha256 = "0"\ninner_path = "i"\ncommit = "0123456789abcdef"\n'
            '[profiles.library]\ninclude = ["src/"]\nexclude = []\n'
        )
        self.set({"0001-x.patch": PATCH})

    def set(self, patches: dict[str, str]) -> None:
        for name, text in patches.items():
            (self.patches / name).write_text(text)
        (self.patches / "series").write_text("# in order\n" + "\n".join(patches) + "\n")

    def prepare(self) -> str:
        return prepare(self.out, "library", str(self.tree), self.patches, self.toml)

    def contents(self) -> dict[str, str]:
        files = [p for p in self.out.rglob("*") if p.is_file()] if self.out.exists() else []
        return {p.relative_to(self.out).as_posix(): p.read_text() for p in files}


@pytest.fixture
def series(tmp_path: Path) -> Series:
    return Series(tmp_path)


def test_patched_tree(series: Series) -> None:
    digest = series.prepare()
    files = series.contents()
    assert files["src/a.txt"] == "one\ntwo\nTHREE\n3b\nfour\nfive\n"
    assert files["src/b.txt"] == "b\n"
    assert digest in files[apply_patches.STAMP]
    assert (series.tree / "src/a.txt").read_text() == SOURCE


def test_patches_build_on_each_other(series: Series) -> None:
    second = "--- a/src/a.txt\n+++ b/src/a.txt\n@@ -3,2 +3,1 @@\n THREE\n-3b\n"
    series.set({"0001-x.patch": PATCH, "0002-y.patch": second})
    series.prepare()
    assert series.contents()["src/a.txt"] == "one\ntwo\nTHREE\nfour\nfive\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("three", "drei"), r"0001-x.patch: src/a.txt:2: the context differs"),
        (("@@ -2,3 +2,4 @@", "@@ -3,3 +3,4 @@"), "the context differs"),  # right text, wrong line: no fuzz
        (("src/a.txt", "src/none.txt"), "has no file src/none.txt"),
        (("+++ b/src/a.txt", "+++ b/../a.txt"), "may only change files of the tree"),
        (("+++ b/src/a.txt", "+++ /dev/null"), "may only change files of the tree"),
        (("+++ b/src/a.txt", "+++ /etc/passwd"), "may only change files of the tree"),
        (("+3b\n four\n", ""), "cut off"),
        (("-three", "?three"), "malformed hunk line"),
        ((PATCH, "only words\n"), "holds no change"),
    ],
)
def test_a_failing_patch_touches_nothing(series: Series, change: tuple[str, str], message: str) -> None:
    series.set({"0001-x.patch": PATCH.replace(*change)})
    with pytest.raises(PatchError, match=message):
        series.prepare()
    assert series.contents() == {}


def test_a_failing_second_patch_keeps_the_prepared_tree(series: Series) -> None:
    series.prepare()
    before = series.contents()
    series.set({"0001-x.patch": PATCH, "0002-y.patch": PATCH})
    with pytest.raises(PatchError, match=r"0002-y\.patch"):
        series.prepare()
    assert series.contents() == before


def test_unchanged_files_keep_their_time(series: Series) -> None:
    series.prepare()
    untouched, patched = series.out / "src/b.txt", series.out / "src/a.txt"
    before = untouched.stat().st_mtime_ns
    series.set({"0001-x.patch": PATCH.replace("+3b", "+3c")})
    series.prepare()
    assert "3c" in patched.read_text()
    assert untouched.stat().st_mtime_ns == before


def test_files_of_an_older_tree_go_away(series: Series) -> None:
    series.prepare()
    (series.out / "src/old.txt").write_text("old")
    (series.out / apply_patches.STAMP).unlink()
    series.prepare()
    assert "src/old.txt" not in series.contents()


def test_current_tree_is_left_alone(series: Series) -> None:
    series.prepare()
    (series.out / "src/a.txt").write_text("edited by hand")
    series.prepare()
    assert series.contents()["src/a.txt"] == "edited by hand"


def test_digest_covers_pin_and_patches(series: Series) -> None:
    one = tree_digest(series.patches, series.toml)
    series.set({"0001-x.patch": PATCH.replace("+3b", "+3c")})
    two = tree_digest(series.patches, series.toml)
    series.toml.write_text(series.toml.read_text() + "# more\n")
    assert len({one, two, tree_digest(series.patches, series.toml)}) == 3


def test_hunks_shift_each_other() -> None:
    patch = "+++ b/f\n@@ -1,1 +1,2 @@\n-one\n+1\n+1b\n@@ -5,1 +6,1 @@\n-five\n+5\n"
    hunks = parse_patch("p", patch)["f"]
    assert apply_hunks("p", "f", SOURCE, hunks) == "1\n1b\ntwo\nthree\nfour\n5\n"


def test_our_patches_parse_and_stay_hooks() -> None:
    changed = 0
    for path in read_series(NATIVE / "patches"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("Subject: "), f"{path.name} has no header that says why"
        for hunks in parse_patch(path.name, text).values():
            changed += sum(len(set(h.new) - set(h.old)) for h in hunks)
    assert 0 < changed < 250
