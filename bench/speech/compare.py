#!/usr/bin/env python3
"""Compares `gyrus transcribe` with whisper.cpp and faster-whisper: word errors and time, in one run.

compare.py GYRUS WHISPER_CLI MODEL.bin [--ctranslate2 DIR] [-t THREADS] [-r ROUNDS] [--exact] [--speech TEXT:VOICE ...]

WHISPER_CLI is what `bench/whisper-cpp` prints, MODEL.bin a GGML file. The speech is text.txt in this folder, spoken by
`flite -voice slt` (ten minutes), and the LibriVox recordings of Debian's package pocketsphinx-testdata. All programs decode
greedily at temperature 0 without fallback; each is timed as a whole command and alternates with the others.
DIR is the same model in CTranslate2's form (`ctranslate2_model.py MODEL.bin DIR`): faster-whisper is timed after it has loaded
it. `--speech` replaces the speech by these texts (`texts.py` writes some), each spoken by a voice of flite, and prints the mean
of their word errors; `--exact` adds Gyrus in `exact`.
"""
import argparse
import glob
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

here = os.path.dirname(os.path.abspath(__file__))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("gyrus")
parser.add_argument("whisper_cli")
parser.add_argument("model")
parser.add_argument("--ctranslate2")
parser.add_argument("-t", "--threads", type=int, default=2)
parser.add_argument("-r", "--rounds", type=int, default=3)
parser.add_argument("--exact", action="store_true")
parser.add_argument("--speech", nargs="+", default=[os.path.join(here, "text.txt") + ":slt"], metavar="TEXT:VOICE")
parser.add_argument("--librivox", default="/usr/share/pocketsphinx/test/data/librivox")
arguments = parser.parse_args()
threads = arguments.threads


def words(text):
    """Lower case without punctuation, and without what is said in brackets."""
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)", " ", text.lower())
    return re.sub(r"[^a-z0-9' ]", " ", text.replace("’", "'")).split()


def errors(expected, found):
    """The least number of substituted, left out and added words."""
    row = list(range(len(found) + 1))
    for i, word in enumerate(expected, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(found, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


def command(*parts):
    start = time.perf_counter()
    done = subprocess.run([str(part) for part in parts], capture_output=True, text=True)
    took = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{parts[0]}: {done.stderr[-2000:]}")
    return done.stdout, took


def gyrus(model, previous, precision="fast"):
    flags = ["--precision", precision] + ([] if previous else ["--no-previous-text"])
    return lambda file: command(arguments.gyrus, "transcribe", file, "--model", model, "-l", "en", "--device", "cpu",
                                "--threads", threads, "--no-fallback", "--non-speech", "-q", *flags)


def whisper_cpp(model, previous):
    flags = [] if previous else ["-mc", "0"]
    return lambda file: command(arguments.whisper_cli, "-m", model, "-f", file, "-l", "en", "-t", threads, "-bs", "1",
                                "-bo", "1", "-nf", "-np", *flags)


def plain(text):
    """The text of whisper-cli, whose lines begin with times."""
    return re.sub(r"^\[[^\]]*\]", "", text, flags=re.MULTILINE)


programs = {}
for previous in (True, False):
    name = "with" if previous else "without"
    programs[f"gyrus, {name} previous text"] = gyrus(arguments.model, previous)
    if arguments.exact:
        programs[f"gyrus exact, {name} previous text"] = gyrus(arguments.model, previous, "exact")
    programs[f"whisper.cpp, {name} previous text"] = whisper_cpp(arguments.model, previous)
if arguments.ctranslate2:
    from faster_whisper import WhisperModel

    loaded = WhisperModel(arguments.ctranslate2, device="cpu", compute_type="int8", cpu_threads=threads)

    def faster(file):
        start = time.perf_counter()
        segments, _ = loaded.transcribe(file, language="en", beam_size=1, best_of=1, temperature=0.0)
        text = " ".join(segment.text for segment in segments)
        return text, time.perf_counter() - start

    programs["faster-whisper int8, with previous text"] = faster

rates = {name: [] for name in programs}
for spoken in arguments.speech:
    source, voice = spoken.rsplit(":", 1)
    with open(source, encoding="utf-8") as file:
        expected = words(file.read())
    times = {name: [] for name in programs}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        speech = os.path.join(folder, "speech.wav")
        command("flite", "-voice", voice, "-f", source, "-o", speech)
        for _ in range(arguments.rounds):
            for name, run in programs.items():
                found[name], took = run(speech)
                times[name].append(took)
    print(f"{os.path.basename(source)}, {len(expected)} words by flite's {voice}, {threads} threads, "
          f"medians of {arguments.rounds}")
    for name in programs:
        rates[name].append(errors(expected, words(plain(found[name]))) / len(expected))
        samples = " ".join(f"{took:.1f}" for took in times[name])
        print(f"{name:42} {statistics.median(times[name]):7.1f} s ({samples})   word errors {100 * rates[name][-1]:5.2f} %")
if len(arguments.speech) > 1:
    print(f"mean of {len(arguments.speech)} recordings")
    for name in programs:
        print(f"{name:42} word errors {100 * statistics.mean(rates[name]):5.2f} %")

recordings = sorted(glob.glob(os.path.join(arguments.librivox, "*.wav")))
if recordings:
    said = {}
    with open(os.path.join(arguments.librivox, "transcription"), encoding="utf-8") as file:
        for line in file:
            text, name = re.fullmatch(r"<s> (.*) </s> \((.*)\)\s*", line).groups()
            said[name] = words(text)
    print(f"{sum(map(len, said.values()))} words in {len(recordings)} recordings of LibriVox")
    for name, run in programs.items():
        wrong = 0
        for file in recordings:
            text, _ = run(file)
            wrong += errors(said[os.path.basename(file)[:-4]], words(plain(text)))
        print(f"{name:42} word errors {100 * wrong / sum(map(len, said.values())):5.2f} %")
