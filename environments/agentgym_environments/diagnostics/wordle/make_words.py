"""Derives the word lists of this folder from Debian's wamerican and wamerican-small (SCOWL; see LICENSE.scowl).

    python make_words.py /usr/share/dict/american-english american-english-small

The first argument gives the words that may be guessed, the second, smaller list the words that are answers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROMAN = re.compile(r"m*(cm|cd|d?c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})")
MINI_LETTERS = set("aeiostrlndcm")
UNKIND = re.compile(
    ""
    "bitch|clit|cocks|cunts|dykes|enema|fagot|fucks|horny|kikes|pen[ei]s|pubic|pussy|raped|rapes|semen|sexed|shits|sluts"
    "|sperm|spics|whore"
)
"""Not shown to anyone."""


def plain(path: str, length: int) -> list[str]:
    words = {line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()}
    return sorted(
        w for w in words if re.fullmatch(f"[a-z]{{{length}}}", w) and not ROMAN.fullmatch(w) and not UNKIND.fullmatch(w)
    )


def inflected(word: str, known: set[str]) -> bool:
    """A plural, a third person or a past tense: guessable, but a dull answer."""
    if word.endswith("s") and not word.endswith("ss") and word[:-1] in known:
        return True
    return word.endswith("ed") and (word[:-1] in known or word[:-2] in known)


def main(large: str, small: str) -> None:
    here = Path(__file__).parent
    known = {line.strip() for path in (large, small) for line in Path(path).read_text(encoding="utf-8").splitlines()}
    answers = [word for word in plain(small, 5) if not inflected(word, known)]
    mini = [
        word
        for word in plain(small, 4)
        if set(word) <= MINI_LETTERS and len(set(word)) == 4 and not inflected(word, known)
    ]
    write = {"answers5": answers, "guesses5": sorted({*plain(large, 5), *answers}), "answers4": mini}
    for name, words in write.items():
        (here / f"{name}.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
        print(name, len(words))


if __name__ == "__main__":
    main(*sys.argv[1:])
