#!/usr/bin/env python3
"""Gyrus and llama.cpp on one machine, alternately: medians and ratios as a Markdown table.

compare.py --llama-bench PATH [--gyrus PATH] [-p N,…] [-n N,…] [-d N,…] [-t N] [-r N] MODEL.gguf…

Each alternation runs every test once with either program, so that a machine that slows down or speeds up does so
for both. bench/llama-cpp builds a llama-bench for this very processor.
"""
import argparse
import json
import statistics
import subprocess
import sys


def gyrus(program, model, args, test):
    kind, tokens, depth = test
    lengths = ["-p", tokens, "-n", 0] if kind == "pp" else ["-p", 0, "-n", tokens]
    command = [program, "bench", model, *lengths, "-d", depth, "-r", 1, "--threads", args.threads, "-o", "json", "-q"]
    return json.loads(run(command))[0]["tokens_per_second"]


def llama(program, model, args, test):
    kind, tokens, depth = test
    lengths = ["-p", tokens, "-n", 0] if kind == "pp" else ["-p", 0, "-n", tokens]
    command = [program, "-m", model, *lengths, "-d", depth, "-r", 1, "-t", args.threads, "-ngl", 0, "-o", "json"]
    return json.loads(run(command))[0]["avg_ts"]


def run(command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser.add_argument("models", nargs="+")
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--gyrus", default="target/release/gyrus")
    parser.add_argument("-p", type=numbers, default=[512])
    parser.add_argument("-n", type=numbers, default=[128])
    parser.add_argument("-d", type=numbers, default=[0])
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    args = parser.parse_args()
    print(f"| model | test | threads | Gyrus | llama.cpp | ratio |\n|---|---|---:|---:|---:|---:|")
    for model in args.models:
        tests = [("pp", n, 0) for n in args.p if n] + [("tg", n, d) for d in args.d for n in args.n if n]
        for test in tests:
            ours, theirs = [], []
            for _ in range(args.repetitions):
                ours.append(gyrus(args.gyrus, model, args, test))
                theirs.append(llama(args.llama_bench, model, args, test))
            a, b = statistics.median(ours), statistics.median(theirs)
            name = f"{test[0]}{test[1]}" + (f"@d{test[2]}" if test[2] else "")
            print(f"| {model.rsplit('/', 1)[-1]} | {name} | {args.threads} | {a:.1f} | {b:.1f} | {a / b:.2f} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
