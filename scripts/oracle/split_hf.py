#!/usr/bin/env python3
"""Pieces of text as Oniguruma cuts them, for the differential tests of gyrus-text's splitters.

Usage: split_hf.py REQUESTS      (needs PyPI tokenizers)

REQUESTS is as for tokenize_llama.py. For each rule below, a line "rule NAME" and then, for each text,
one line with the lengths of its pieces in bytes. The patterns are those of the published tokenizers.
"""
import sys

from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BLANK = r"\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + BLANK
CL100K = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + BLANK
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def o200k(suffix, digits, tail, upper=UPPER, lower=LOWER, first=""):
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (f"{first}{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}|" r"\p{N}" f"{digits}"
            r"| ?[^\s\p{L}\p{N}]+" f"{tail}*" r"|\s*[\r\n]+|" + BLANK)


DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|" + BLANK)
CASED = ("A-Za-z\\u00b5\\u00c0-\\u00d6\\u00d8-\\u00f6\\u00f8-\\u01ba\\u01bc-\\u01bf\\u01c4-\\u0293\\u0295-\\u02af"
         "\\u0370-\\u0373\\u0376\\u0377\\u037b-\\u037d\\u037f\\u0386\\u0388-\\u038a\\u038c\\u038e-\\u03a1"
         "\\u03a3-\\u03f5\\u03f7-\\u0481\\u048a-\\u052f\\u0531-\\u0556\\u10a0-\\u10c5\\u13a0-\\u13f5\\u13f8-\\u13fd"
         "\\u1c90-\\u1cba\\u1cbd-\\u1cbf\\u1d00-\\u1d2b\\u1d6b-\\u1d77\\u1d79-\\u1d9a\\u1e00-\\u1f15\\u1f18-\\u1f1d"
         "\\u1f20-\\u1f45\\u1f48-\\u1f4d\\u1f50-\\u1f57\\u1f59\\u1f5b\\u1f5d\\u1f5f-\\u1f7d\\u1f80-\\u1fb4"
         "\\u1fb6-\\u1fbc\\u1fbe\\u1fc2-\\u1fc4\\u1fc6-\\u1fcc\\u1fd0-\\u1fd3\\u1fd6-\\u1fdb\\u1fe0-\\u1fec"
         "\\u1ff2-\\u1ff4\\u1ff6-\\u1ffc\\u2102\\u2107\\u210a-\\u2113\\u2115\\u2119-\\u211d\\u2124\\u2126\\u2128"
         "\\u212a-\\u212d\\u212f-\\u2134\\u2139\\u213c-\\u213f\\u2145-\\u2149\\u214e\\u2183\\u2184\\u2c00-\\u2c7b"
         "\\u2c7e-\\u2ce4\\u2ceb-\\u2cee\\u2cf2\\u2cf3\\ua640-\\ua66d\\ua680-\\ua69b\\ua722-\\ua76f\\ua771-\\ua787"
         "\\ua78b-\\ua78e\\uab70-\\uabbf\\ufb00-\\ufb06\\ufb13-\\ufb17\\uff21-\\uff3a\\uff41-\\uff5a"
         "\\U00010400-\\U0001044f\\U000104b0-\\U000104d3\\U000104d8-\\U000104fb\\U00010c80-\\U00010cb2"
         "\\U00010cc0-\\U00010cf2\\U000118a0-\\U000118df\\U0001e900-\\U0001e943").encode().decode("unicode_escape")
EAST = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
RULES = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "llama-bpe": [CL100K % "{1,3}"],
    "qwen2": [CL100K % ""],
    "minicpm5": [r"\p{N}{1,3}", CL100K % "+"],
    "qwen35": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|"
               + BLANK],
    "seed-coder": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|" + BLANK],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
                   + BLANK],
    "ufakzeka": [r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + BLANK],
    "laguna": [r"[^\n]+|[\n]+", CL100K % ""],
    "gpt-4o": [o200k(CONTRACTIONS + "?", "{1,3}", r"[\r\n/]")],
    "tekken": [o200k("", "", r"[\r\n/]")],
    "youtu": ["[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
              "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + HAN_KANA,
              o200k(CONTRACTIONS + "?", "", r"[\r\n/]")],
    "kimi-k2": [o200k(CONTRACTIONS + "?", "{1,3}", r"[\r\n]", UPPER[:-1] + r"&&[^\p{Han}]]",
                      LOWER[:-1] + r"&&[^\p{Han}]]", r"\p{Han}+|")],
    "deepseek-v3": [r"\p{N}{1,3}", HAN_KANA, DEEPSEEK],
    "spark2_5": [r"\p{N}{1,3}", HAN_KANA, DEEPSEEK.replace(r"[\r\n]*|\s*[\r\n]+|", r"|[\r\n]|"), r"\p{N}"],
    "deepseek-llm": [r"[\r\n]", rf"\s?[{CASED}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                     r"\s+$", EAST, r"\p{N}+"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST, r"\p{N}"],
    "bloom": [" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"],
    "viking": [" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+", r"\p{N}"],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "exaone-moe": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                   r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|" + BLANK],
}


def main(requests):
    texts = [bytes.fromhex(line.split(" ", 1)[1]).decode() for line in open(requests)]
    for name, patterns in RULES.items():
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
        print("rule", name)
        for text in texts:
            print(*[len(piece.encode()) for piece, _ in split.pre_tokenize_str(text)])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
