#!/usr/bin/env python3
"""Make the tree we build: the pristine source plus native/patches, applied with zero fuzz.

A hunk must match at its exact line with its exact context; anything else is an error that names the hunk, and
the prepared tree is left as it was. Files whose content does not change keep their modification time, so a new
patch rebuilds only what it touches. Only the standard library is used.

    apply_patches.py --out DIR            prepare DIR (skipped when its stamp is current)
    apply_patches.py --digest             print the digest of pin + patches
    apply_patches.py --refresh TREE       rewrite each patch from a git checkout TREE whose commits carry the
                                          patch names as subjects (one commit a patch)
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fetch_upstream import NATIVE, FetchError, Pin, load_pin, provide

HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
STAMP = ".turbo-stamp"


class PatchError(Exception):
    """A patch does not apply; the message names patch, file and line."""


@dataclass
class Hunk:
    """One hunk: 1-based first line in the old file, old lines and new lines."""

    start: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


def parse_patch(name: str, text: str) -> dict[str, list[Hunk]]:
    """Parse a unified diff into hunks by path; only changes of existing text files are allowed."""
    files: dict[str, list[Hunk]] = {}
    current: list[Hunk] | None = None
    hunk: Hunk | None = None
    left_old = left_new = 0
    for number, line in enumerate(text.split("\n"), 1):
        if hunk is not None and (left_old > 0 or left_new > 0):
            sign, body = line[:1], line[1:]
            if sign in (" ", "") or sign == "-":
                hunk.old.append(body)
                left_old -= 1
            if sign in (" ", "") or sign == "+":
                hunk.new.append(body)
                left_new -= 1
            if sign not in (" ", "", "-", "+") or left_old < 0 or left_new < 0:
                raise PatchError(f"{name}:{number}: malformed hunk line")
        elif line.startswith("+++ "):
            path = line[4:].split("\t")[0].removeprefix("b/")
            if path == "/dev/null" or ".." in PurePosixPath(path).parts or path.startswith("/"):
                raise PatchError(f"{name}:{number}: a patch may only change files of the tree, not {path}")
            current = files.setdefault(path, [])
            hunk = None
        elif match := HUNK.match(line):
            if current is None:
                raise PatchError(f"{name}:{number}: hunk before a file name")
            hunk = Hunk(int(match[1]))
            left_old, left_new = int(match[2] or 1), int(match[4] or 1)
            current.append(hunk)
    if left_old > 0 or left_new > 0:
        raise PatchError(f"{name}: the last hunk is cut off")
    if not files:
        raise PatchError(f"{name}: holds no change")
    return files


def apply_hunks(name: str, path: str, text: str, hunks: list[Hunk]) -> str:
    """Apply hunks to a file's text, each at its exact line; raises PatchError otherwise."""
    lines = text.split("\n")
    shift = 0
    for hunk in hunks:
        at = hunk.start - 1 + shift
        if lines[at : at + len(hunk.old)] != hunk.old:
            raise PatchError(
                f"{name}: {path}:{hunk.start}: the context differs from the source. "
                "The pin and the patches do not belong together (native/upstream.toml, native/patches)."
            )
        lines[at : at + len(hunk.old)] = hunk.new
        shift += len(hunk.new) - len(hunk.old)
    return "\n".join(lines)


def read_series(folder: Path) -> list[Path]:
    """The patches in order, from the quilt series file."""
    names = (folder / "series").read_text(encoding="utf-8").split("\n")
    return [folder / n.strip() for n in names if n.strip() and not n.startswith("#")]


def tree_digest(folder: Path, toml: Path) -> str:
    """Hex digest of pin + series + patches: the version of the prepared tree."""
    digest = hashlib.sha256()
    for path in [toml, folder / "series", *read_series(folder)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def patched_texts(tree: Path, patches: list[Path], pin: Pin) -> dict[str, str]:
    """The new text of every patched file. Changes to files that the profile leaves out are passed over."""
    texts: dict[str, str] = {}
    for patch in patches:
        for path, hunks in parse_patch(patch.name, patch.read_text(encoding="utf-8")).items():
            if not pin.wants(path):
                continue
            if path not in texts:
                source = tree / path
                if not source.is_file():
                    raise PatchError(f"{patch.name}: the source has no file {path}")
                texts[path] = source.read_text(encoding="utf-8")
            texts[path] = apply_hunks(patch.name, path, texts[path], hunks)
    return texts


def _write_if_changed(path: Path, data: bytes) -> None:
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as tmp:
        tmp.write(data)
    Path(tmp.name).chmod(0o644)
    Path(tmp.name).replace(path)


def prepare(out: Path, profile: str, source: str | None, folder: Path, toml: Path) -> str:
    """Bring `out` to pristine + patches; returns the digest. Unchanged files are not rewritten."""
    digest = tree_digest(folder, toml)
    stamp = out / STAMP
    wanted = f"{digest} {profile} {source or ''}\n"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return digest
    tree = provide(profile, source, toml)
    texts = patched_texts(
        tree, read_series(folder), load_pin(profile, toml)
    )  # all patches apply, or nothing is touched
    try:
        stamp.unlink(missing_ok=True)
        keep = {STAMP}
        for file in sorted(p for p in tree.rglob("*") if p.is_file() and ".git" not in p.parts):
            name = file.relative_to(tree).as_posix()
            keep.add(name)
            _write_if_changed(out / name, texts[name].encode() if name in texts else file.read_bytes())
        for file in [p for p in out.rglob("*") if p.is_file()]:
            if file.relative_to(out).as_posix() not in keep:
                file.unlink()
        _write_if_changed(stamp, wanted.encode())
    except OSError as error:
        raise PatchError(f"cannot write the prepared tree {out}: {error}") from error
    return digest


def refresh(tree: Path, folder: Path) -> None:
    """Rewrite every patch body from the commit of the same name in a git checkout; headers stay."""
    log = subprocess.run(["git", "-C", str(tree), "log", "--format=%H %s"], capture_output=True, text=True, check=True)
    commits = {line.split(" ", 1)[1]: line.split(" ", 1)[0] for line in log.stdout.strip().split("\n")}
    for patch in read_series(folder):
        if patch.stem not in commits:
            raise PatchError(f"{tree} has no commit named {patch.stem}")
        command = ["git", "-C", str(tree), "show", "--format=", "--no-color", "-U2", commits[patch.stem]]
        body = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        body = re.sub(r"^(diff --git|index) .*\n", "", body, flags=re.M)
        body = re.sub(r"^(@@ .* @@).*$", r"\1", body, flags=re.M)  # no function names of the source
        old = patch.read_text(encoding="utf-8") if patch.is_file() else f"Subject: {patch.stem}\n"
        header = old.split("\n--- ", 1)[0].rstrip("\n")
        patch.write_text(f"{header}\n{body}", encoding="utf-8")


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", default="library")
    parser.add_argument("--source")
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("--refresh", type=Path, metavar="TREE")
    args = parser.parse_args()
    folder, toml = NATIVE / "patches", NATIVE / "upstream.toml"
    try:
        if args.refresh:
            refresh(args.refresh, folder)
        if args.digest:
            print(tree_digest(folder, toml))
        if args.out:
            print(prepare(args.out, args.profile, args.source, folder, toml))
    except (FetchError, PatchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
