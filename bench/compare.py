#!/usr/bin/env python3
"""Gyrus and llama.cpp on one machine, alternately: medians and ratios.

  compare.py --all [--out docs/bench-cpu.json] [--docs docs/benchmarks.md]
                                                    every row of that document, some 15 minutes on two cores
  compare.py --deep [--out …]                       more rows: 1B at more depths and on one thread
  compare.py --render docs/bench-cpu.json           the table and the chart again, nothing is run
  compare.py MODEL.gguf… [-p N,…] [-n N,…] [-d N,…] a table of one's own

Each alternation runs every test once with either program, so that a machine that slows down or speeds up does so for
both. A run during which other processes took more than 5 % of the processor (`--others`) is repeated: threads that wait
for each other by spinning slow down far more than by that share. Results are kept in the JSON file after each run: what
was interrupted goes on where it stopped. Random models are written by `gyrus bench --synthetic --write`;
bench/llama-cpp builds a llama.cpp for this very processor.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

import chart

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Sixteen tokens of SmolLM2.
PROMPT = "The lighthouse keeper wrote down the weather every morning and counted the ships that passed by"

SMOL, TALES = "SmolLM2-135M Q4_1", "Tales 7M Q8_0"
ONE_B = {"q4_0": "1B shape Q4_0", "q4_k": "1B shape Q4_K", "q8_0": "1B shape Q8_0"}


class Job:
    """One start of either program: some tests of a model on some threads."""

    def __init__(self, model, threads, prompts=(), tokens=0, depths=()):
        self.model, self.threads, self.prompts, self.tokens, self.depths = model, threads, prompts, tokens, depths

    def tests(self):
        names = [f"pp{n}" for n in self.prompts]
        if self.tokens:
            names += [f"tg{self.tokens}" + (f"@d{d}" if d else "") for d in self.depths]
        return names

    def lengths(self):
        # The first prompt is read twice and the second time counts: the first warms up.
        prompts = [self.prompts[0], *self.prompts] if self.prompts else [0]
        return ["-p", numbers(prompts), "-n", str(self.tokens), "-d", numbers(self.depths or [0]), "-r", "1", "--no-warmup"]


def jobs_of_all():
    yield Job(SMOL, 2, [16, 128, 512], 128, [0])
    yield Job(SMOL, 2, [], 128, [512, 2048])
    yield Job(SMOL, 1, [128], 64, [0])
    yield Job(TALES, 2, [16, 128, 512], 128, [0])
    yield Job(TALES, 2, [], 128, [512])
    yield Job(TALES, 1, [128], 128, [0])
    for name in ONE_B.values():
        yield Job(name, 2, [16, 128, 512], 32, [0])
        yield Job(name, 1, [128], 16, [0])
    yield Job(ONE_B["q4_0"], 2, [], 32, [512])


def jobs_of_deep():
    yield Job(ONE_B["q4_0"], 2, [], 32, [2048])
    for name in [ONE_B["q4_k"], ONE_B["q8_0"]]:
        yield Job(name, 2, [], 32, [512, 2048])
    yield Job(SMOL, 1, [512], 128, [0])
    yield Job(SMOL, 1, [], 128, [512, 2048])


def numbers(values):
    return ",".join(str(v) for v in values)


def quiet(measure, most):
    """What `measure` returns, measured while other processes take little of the processor's time."""
    while True:
        result, share = share_of_others(measure)
        if share <= most:
            return result
        print(f"other processes took {share:.0%} of the processor: measuring again", file=sys.stderr)
        time.sleep(2)


def share_of_others(work):
    """The result of `work`, and the share of the processor that other processes took meanwhile."""
    begin, others = time.monotonic(), foreign_seconds()
    result = work()
    return result, (foreign_seconds() - others) / (time.monotonic() - begin) / os.cpu_count()


def foreign_seconds():
    """Processor time of all processes but those that this one has run; 0 where there is no /proc."""
    stat = pathlib.Path("/proc/stat")
    if not stat.exists():
        return 0
    user, nice, system, _idle, _wait, irq, soft, *_ = (int(n) for n in stat.read_text().split("\n")[0].split()[1:])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
    return busy - own.ru_utime - own.ru_stime


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(str(c) for c in command)}\n{done.stderr[-2000:]}")
    return done.stdout


class Programs:
    def __init__(self, args):
        self.gyrus = pathlib.Path(args.gyrus)
        self.llama = pathlib.Path(args.llama)
        self.smollm2 = pathlib.Path(args.smollm2)
        self.folder = pathlib.Path(args.folder)

    def path(self, model):
        """The file of a model; random ones are written when they are first asked for."""
        if model == SMOL:
            if not self.smollm2.exists():
                run(["env", f"GYRUS_CACHE={ROOT / 'target'}", self.gyrus, "pull", "smollm2-135m"])
            return self.smollm2
        if model == TALES:
            return ROOT / "models/tales-7m/tales-7m-q8_0.gguf"
        for quant, name in ONE_B.items():
            if model == name:
                path = self.folder / f"llama-3.2-1b-{quant}.gguf"
                if not path.exists():
                    self.folder.mkdir(parents=True, exist_ok=True)
                    part = path.with_suffix(".part")
                    run([self.gyrus, "bench", "--synthetic", f"llama-3.2-1b:{quant}", "--write", part])
                    part.rename(path)
                return path
        return pathlib.Path(model)

    def measure(self, which, job):
        """Tokens per second of each test."""
        path = self.path(job.model)
        if which == "gyrus":
            command = [self.gyrus, "bench", path, *job.lengths(), "--threads", job.threads, "--device", "cpu"]
            command += ["-o", "json", "-q"]
            return {row["test"]: row["tokens_per_second"] for row in json.loads(run(command))}
        command = [self.llama / "llama-bench", "-m", path, *job.lengths(), "-t", job.threads, "-ngl", "0", "-o", "json"]
        speeds = {}
        for row in json.loads(run(command)):
            kind, n = ("pp", row["n_prompt"]) if row["n_prompt"] else ("tg", row["n_gen"])
            depth = f"@d{row['n_depth']}" if row["n_depth"] else ""
            speeds[f"{kind}{n}{depth}"] = row["avg_ts"]
        return speeds

    def start(self, which):
        """Seconds from the start of the process to its end after one token, the file in the page cache."""
        path = self.path(SMOL)
        command = {
            "gyrus": [self.gyrus, "complete", path, PROMPT, "-n", "1", "-q", "--threads", "2"],
            "llama": [self.llama / "llama-completion", "-m", path, "-p", PROMPT, "-n", "1", "-t", "2", "-ngl", "0",
                      "--no-warmup", "-no-cnv"],
        }[which]
        begin = time.monotonic()
        run(command)
        return time.monotonic() - begin


class Results:
    """Samples by key and program, kept in a file."""

    def __init__(self, path):
        self.path = pathlib.Path(path) if path else None
        self.data = {"rows": {}}
        if self.path and self.path.exists():
            self.data = json.loads(self.path.read_text())
        self.data.setdefault("machine", machine())

    def samples(self, key):
        return self.data["rows"].setdefault(key, {"gyrus": [], "llama": []})

    def add(self, key, which, value):
        self.samples(key)[which].append(round(value, 4))

    def save(self):
        self.data["date"] = datetime.date.today().isoformat()
        if self.path:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(self.data, indent=1) + "\n")
            part.rename(self.path)

    def rows(self):
        """(model, threads, test, ours, theirs, ratio, samples), medians, in the order they were first measured."""
        for key, samples in self.data["rows"].items():
            if samples["gyrus"] and samples["llama"]:
                model, threads, test = key.split("|")
                a, b = statistics.median(samples["gyrus"]), statistics.median(samples["llama"])
                ratio = b / a if test == "start" else a / b
                yield model, int(threads), test, a, b, ratio, min(len(samples["gyrus"]), len(samples["llama"]))


def machine():
    name = platform.processor() or platform.machine()
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return name


def key(job, test):
    return f"{job.model}|{job.threads}|{test}"


def table(results):
    lines = ["| model | threads | test | Gyrus | llama.cpp | ratio |", "|---|---:|---|---:|---:|---:|"]
    number = lambda v: f"{v:.0f}" if v >= 100 else f"{v:.1f}"
    last = None
    for model, threads, test, a, b, ratio, _ in sorted(results.rows(), key=order):
        if test != "start":
            head = (model if last is None or last[0] != model else "", str(threads) if last != (model, threads) else "")
            last = (model, threads)
            lines.append(f"| {head[0]} | {head[1]} | {test} | {number(a)} | {number(b)} | {ratio:.2f} |")
    return "\n".join(lines)


def order(row):
    names = [SMOL, TALES, *ONE_B.values()]
    place = names.index(row[0]) if row[0] in names else len(names)
    kind, _, depth = row[2].partition("@d")
    return place, row[0], -row[1], not kind.startswith("pp"), int(depth or 0), int(kind[2:]) if kind[2:].isdigit() else 0


def render(results, docs):
    """The chart beside the results, and the table between its marks in the document."""
    text = table(results)
    for model, threads, test, a, b, ratio, n in results.rows():
        if test == "start":
            text += (f"\n\nStart to first token, {model}, {threads} threads, 16 tokens of prompt, file in the page cache:"
                     f" Gyrus {a:.3f} s, llama.cpp {b:.3f} s, {a / b:.2f} times as long.")
    fewest = min((row[6] for row in results.rows()), default=0)
    text += f"\n\n{results.data['machine']}; medians of at least {fewest} alternations, {results.data.get('date', '')}."
    print(text)
    if results.path:
        bars = [row for row in sorted(results.rows(), key=order) if row[1] == 2 and row[2] != "start"]
        results.path.with_suffix(".svg").write_text(chart.svg(bars))
        text = f"![Speed relative to llama.cpp, two threads]({results.path.with_suffix('.svg').name})\n\n{text}"
    begin, end = "<!-- bench-cpu: written by bench/compare.py -->", "<!-- /bench-cpu -->"
    if docs and docs.exists() and begin in (page := docs.read_text()):
        before, rest = page.split(begin, 1)
        docs.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end, 1)[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    several = lambda text: [int(n) for n in text.split(",")]
    parser.add_argument("models", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("--render", metavar="FILE")
    parser.add_argument("--out", help="where results are kept, and beside them the chart")
    parser.add_argument("--docs", type=pathlib.Path, help="a document to write the table to")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing new after this")
    parser.add_argument("--gyrus", default=ROOT / "target/release/gyrus")
    parser.add_argument("--llama", default=ROOT / "target/llama.cpp/build/bin", help="folder of llama.cpp's programs")
    parser.add_argument("--smollm2", default=ROOT / "target/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--folder", default=ROOT / "target/bench", help="where random models are written")
    parser.add_argument("-p", type=several, default=[512])
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("-d", type=several, default=[0])
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--others", type=float, default=0.05, help="the most of the processor that others may take")
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    args = parser.parse_args()
    if args.render:
        return render(Results(args.render), args.docs)
    jobs = [Job(m, args.threads, [n for n in args.p if n], args.n, args.d) for m in args.models]
    jobs += list(jobs_of_all()) * args.all + list(jobs_of_deep()) * args.deep
    if not jobs:
        parser.error("nothing to measure: --all, --deep or models")
    programs, results, begin = Programs(args), Results(args.out), time.monotonic()
    for job in jobs:
        programs.path(job.model)
    for repetition in range(args.repetitions):
        for job in [*jobs, None]:
            if job is None and not args.all:
                continue
            keys = [key(job, test) for test in job.tests()] if job else [f"{SMOL}|2|start"]
            # Who goes first changes from time to time.
            for which in ["gyrus", "llama"] if repetition % 2 == 0 else ["llama", "gyrus"]:
                if all(len(results.samples(k)[which]) > repetition for k in keys):
                    continue
                if time.monotonic() - begin > 60 * args.minutes:
                    return render(results, args.docs)
                if job is None:
                    results.add(keys[0], which, quiet(lambda: programs.start(which), args.others))
                else:
                    speeds = quiet(lambda: programs.measure(which, job), args.others)
                    for test, k in zip(job.tests(), keys):
                        results.add(k, which, speeds[test])
                results.save()
            spent = (time.monotonic() - begin) / 60
            print(f"{repetition + 1}/{args.repetitions} {spent:.1f} min: {keys[0]}", file=sys.stderr)
    render(results, args.docs)


if __name__ == "__main__":
    main()
