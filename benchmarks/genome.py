"""A made-up genome as FASTA, with something to learn in it: `python benchmarks/genome.py 4000000 > genome.fa`.

A third is copies of 12 repeats of 300 letters, 2 % of whose letters were changed, on either strand. A fifth is genes:
codons between ATG and a stop, used as unevenly as real ones, behind a TATA box. The rest is drawn letter by letter
from frequencies that depend on the three letters before. So the rest cannot be predicted better than by those
frequencies, and the share of right guesses has a ceiling far below 1, as in a real genome. Contigs have 20,000 letters.
"""

import random
import sys
from collections.abc import Iterator
from itertools import product

CONTIG, REPEATS, REPEAT, CHANGED = 20_000, 12, 300, 0.02
STRAND = str.maketrans("ACGT", "TGCA")


def background(generator: random.Random) -> dict[str, list[float]]:
    return {"".join(three): [generator.gammavariate(2.0, 1.0) for _ in "ACGT"] for three in product("ACGT", repeat=3)}


def drawn(generator: random.Random, table: dict[str, list[float]], count: int) -> str:
    letters = "ACG"
    for _ in range(count):
        letters += generator.choices("ACGT", table[letters[-3:]])[0]
    return letters[3:]


def stretches(generator: random.Random) -> Iterator[str]:
    table = background(generator)
    families = [drawn(generator, table, REPEAT) for _ in range(REPEATS)]
    codons = ["".join(codon) for codon in product("ACGT", repeat=3)]
    codons = [codon for codon in codons if codon not in ("TAA", "TAG", "TGA")]
    usage = [generator.gammavariate(0.5, 1.0) for _ in codons]
    while True:
        kind = generator.random()
        if kind < 0.4:
            letters = list(generator.choice(families))
            for place in range(REPEAT):
                if generator.random() < CHANGED:
                    letters[place] = generator.choice("ACGT")
            copy = "".join(letters)
            yield copy if generator.random() < 0.5 else copy.translate(STRAND)[::-1]
        elif kind < 0.5:
            body = "".join(generator.choices(codons, usage, k=generator.randint(100, 300)))
            yield "TATAAAA" + drawn(generator, table, 25) + "ATG" + body + "TAA"
        else:
            yield drawn(generator, table, generator.randint(100, 600))


def main(letters: int) -> None:
    generator = random.Random(0)
    parts = stretches(generator)
    for number in range(-(-letters // CONTIG)):
        contig = ""
        while len(contig) < CONTIG:
            contig += next(parts)
        print(f">contig{number + 1}", *(contig[place : place + 80] for place in range(0, len(contig), 80)), sep="\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
