"""The peer: what `pregenerate_training_data.py` of the BERT days does, written anew from its description.

Sentences are encoded one by one by a byte-level BPE in plain Python with a word cache; documents become instances of
up to 512 tokens of consecutive sentences; 15 % of the tokens are masked in a Python loop; each instance is a line of
JSON. One epoch, whole documents in memory, as there.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator

SEQ_LEN, RATE, MOST, SHORT = 512, 0.15, 75, 0.1
# GPT-2's splitting rule in the standard library's dialect: letters, digits, others, each with a space before.
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


class PythonBpe:
    def __init__(self, tokenizer_json: str) -> None:
        with open(tokenizer_json, encoding="utf-8") as file:
            model = json.load(file)["model"]
        pairs = [tuple(merge.split()) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self.vocabulary = model["vocab"]
        self.cache: dict[str, list[str]] = {}
        visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in visible]
        self.letters = {byte: chr(byte) for byte in visible} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}

    def merge(self, word: str) -> list[str]:
        if word in self.cache:
            return self.cache[word]
        parts = list(word)
        while len(parts) > 1:
            best = min(zip(parts, parts[1:], strict=False), key=lambda pair: self.ranks.get(pair, 1 << 30))
            if best not in self.ranks:
                break
            joined, place = [], 0
            while place < len(parts):
                if tuple(parts[place : place + 2]) == best:
                    joined.append(parts[place] + parts[place + 1])
                    place += 2
                else:
                    joined.append(parts[place])
                    place += 1
            parts = joined
        self.cache[word] = parts
        return parts

    def tokenize(self, text: str) -> list[str]:
        tokens: list[str] = []
        for word in WORDS.findall(text):
            tokens.extend(self.merge("".join(self.letters[byte] for byte in word.encode())))
        return tokens


def instances(document: list[list[str]], generator: random.Random, words: list[str]) -> Iterator[dict[str, object]]:
    room = SEQ_LEN - 2
    target = generator.randint(2, room) if generator.random() < SHORT else room
    chunk: list[str] = []
    for number, sentence in enumerate(document):
        chunk += sentence
        if len(chunk) >= target or number == len(document) - 1:
            tokens = ["<s>", *chunk[:room], "</s>"]
            order = list(range(1, len(tokens) - 1))
            generator.shuffle(order)
            count = min(MOST, max(1, round(len(tokens) * RATE)))
            places = sorted(order[:count])
            labels = [tokens[place] for place in places]
            for place in places:
                draw = generator.random()
                if draw < 0.8:
                    tokens[place] = "<mask>"
                elif draw < 0.9:
                    tokens[place] = generator.choice(words)
            yield {"tokens": tokens, "masked_lm_positions": places, "masked_lm_labels": labels}
            chunk = []


def pregenerate(text: str, tokenizer_json: str, to: str) -> None:
    bpe, generator = PythonBpe(tokenizer_json), random.Random(0)
    documents: list[list[list[str]]] = [[]]
    with open(text, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if line:
                documents[-1].append(bpe.tokenize(" " + line))
            elif documents[-1]:
                documents.append([])
    words = list(bpe.vocabulary)
    with open(to, "w", encoding="utf-8") as out:
        for document in documents:
            for instance in instances(document, generator, words):
                out.write(json.dumps(instance) + "\n")
