"""Writes cosines and sines of rotary embeddings in high precision: rope_phases.py OUTFILE

It uses Python's decimal arithmetic with 60 digits and nothing else, so it shares no error with any engine:
frequencies by exp and ln, angles reduced modulo one turn before a cosine is taken.
"""

import json
import math
import sys
from decimal import Decimal, getcontext

getcontext().prec = 60
TAU = 2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")

POSITIONS = [0, 1, 255, 257, 4095, 32767, 131072, 524287, 1048575, 1048576, 4294967295]
ROPES = [
    {"base": 10000, "rope_dim": 64, "factor": 1},
    {"base": 500000, "rope_dim": 128, "factor": 1},
    {"base": 1000000, "rope_dim": 256, "factor": 8},
]


def phase(base, rope_dim, factor, pair, position):
    frequency = (-(Decimal(2 * pair) / rope_dim) * Decimal(base).ln()).exp() / factor
    angle = float((frequency * position) % TAU)
    return [round(math.cos(angle), 12), round(math.sin(angle), 12)]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: rope_phases.py OUTFILE")
    for rope in ROPES:
        # Every few pairs are enough, the fastest and the slowest among them.
        pairs = sorted({*range(0, rope["rope_dim"] // 2, 5), rope["rope_dim"] // 2 - 1})
        rope["pairs"] = pairs
        rope["phases"] = [[phase(rope["base"], rope["rope_dim"], rope["factor"], pair, position)
                           for pair in pairs] for position in POSITIONS]
    with open(sys.argv[1], "w") as file:
        json.dump({"positions": POSITIONS, "ropes": ROPES}, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
