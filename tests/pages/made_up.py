"""Made-up notes about six subjects, and single sentences labelled with their subject: what a model learns of the notes
(which words go together) is what the labels are about."""

import random
from collections.abc import Iterable

NOUNS = {
    "kitchen": "pan oven ladle onion broth kettle spoon dough garlic stove plate pepper whisk bread soup sieve",
    "sea": "anchor harbour sail wave reef captain tide lighthouse net deck rudder gull rope keel buoy cabin",
    "sky": "comet planet telescope orbit star moon crater meteor eclipse galaxy lens probe nebula horizon dust halo",
    "garden": "rose hedge spade tulip soil fence rake lawn seed beetle blossom ivy bucket gravel pond thistle",
    "court": "judge verdict witness jury lawyer appeal oath clerk fine trial bench claim plea bail statute robe",
    "stage": "actor curtain script chorus dancer violin opera rehearsal costume audience encore drum aria prop solo",
}
VERBS = {
    "kitchen": "boiled stirred fried seasoned baked",
    "sea": "sailed drifted anchored rowed sank",
    "sky": "orbited glowed rose observed faded",
    "garden": "bloomed grew watered planted withered",
    "court": "ruled argued testified appealed sued",
    "stage": "performed rehearsed sang applauded danced",
}
SHAPES = (
    "The {a} {verb} beside the {b}.",
    "Nobody saw the {a} when the {b} {verb}.",
    "My friend {verb} with a {a} and a {b}.",
    "In the morning the {a} {verb} near the old {b}.",
    "She {verb}, and the {a} was as good as the {b}.",
)


LETTERS = {
    "farm": ("tractor cow barn plough wheat pig hay calf goat cider trough silo", "mowed milked ploughed harvested"),
    "railway": (
        "engine platform signal ticket wagon tunnel guard whistle track bridge siding clock",
        "arrived departed stopped",
    ),
    "clinic": (
        "nurse bandage fever ward doctor tablet needle pulse cough splint chart drip",
        "recovered coughed waited slept",
    ),
}
"""Subjects that the notes do not have."""


SMALL_RECIPES = {
    "recipes/modern.yaml": """
data: {store: data/store, seq_len: 64}
model: {architecture: modernbert, size: nano}
optimizer: {kind: muon, learning_rate: 0.01}
schedule: {steps: 20, warmup_steps: 2}
""",
    "recipes/continue-modernbert.yaml": """
data: {store: data/store, seq_len: 64}
model: {init_from: models/ModernBERT-base}
optimizer: {learning_rate: 0.0003}
schedule: {kind: wsd, steps: 10, warmup_steps: 2, decay_steps: 4}
""",
}


def sentence(subject: str, generator: random.Random) -> str:
    nouns, verbs = LETTERS.get(subject) or (NOUNS[subject], VERBS[subject])
    a, b = generator.sample(nouns.split(), 2)
    return generator.choice(SHAPES).format(a=a, b=b, verb=generator.choice(verbs.split()))


def notes(count: int, seed: int, subjects: Iterable[str] = tuple(NOUNS)) -> list[str]:
    """Documents of 4 to 12 sentences, a sentence a line, each about one subject."""
    generator = random.Random(seed)
    found = []
    for _ in range(count):
        subject = generator.choice(list(subjects))
        found.append("\n".join(sentence(subject, generator) for _ in range(generator.randint(4, 12))))
    return found


def labelled(count: int, seed: int) -> list[tuple[str, str]]:
    """(sentence, subject), all different."""
    generator = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        subject = generator.choice(list(NOUNS))
        found[sentence(subject, generator)] = subject
    return list(found.items())


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences, and the same with their words in reverse."""
    generator = random.Random(seed)
    good = [sentence(generator.choice(list(NOUNS)), generator) for _ in range(count)]
    return [(one, " ".join(reversed(one.rstrip(".").split())) + ".") for one in good]


def fasta(kind: str, alphabet: str, seed: int = 7) -> str:
    """20 records of 600 letters."""
    generator = random.Random(seed)
    return "".join(f">{kind}{number}\n{''.join(generator.choices(alphabet, k=600))}\n" for number in range(20))
