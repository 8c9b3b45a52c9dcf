"""What a test puts into the empty directory before it executes a page: in place of the reader's own files, and of what
the page downloads."""

import csv
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
from fairseq_files import write_fairseq
from fake_hub import TOKEN, fake_hub
from google_cloud.fake import fake_cloud
from google_cloud.storage import make_bucket
from original_epochs import write_folder
from pages import made_up
from pages.markdown import read_page
from pages.shell import Shell
from pages.tpu_slice import STORE, a_slice_of_two
from pages.walk import alone, walk
from private_network import why_not
from ray_cluster import ray_cluster

from maskwright.text.sources import Sources
from maskwright.text.tokenizer import load_tokenizer, train_tokenizer

DOCS = Path(__file__).resolve().parents[2] / "docs"
Given = Callable[[Shell], Iterator[None]]


def nothing(shell: Shell) -> Iterator[None]:
    """"""
    yield


def notes(shell: Shell) -> Iterator[None]:
    """In place of your text, the test has 1,200 made-up notes about six subjects in `corpus/`."""
    folder = shell.folder / "corpus"
    folder.mkdir()
    for number in range(4):
        Path(folder, f"notes-{number}.txt").write_text("\n\n".join(made_up.notes(300, number)) + "\n", encoding="utf-8")
    yield


def shard(shell: Shell) -> Iterator[None]:
    """In place of your disk, the test has a small shard in fairseq's format in `shared_pd/shard0`, and in place of the
    Hugging Face Hub a small one with a tokenizer as `FacebookAI/roberta-base`."""
    tokenizer, text = shell.root / "roberta-base", shell.root / "notes.txt"
    text.write_text("\n\n".join(made_up.notes(400, 5)) + "\n", encoding="utf-8")
    sources = Sources([str(text)], layout="sentences")
    train_tokenizer(sources, str(tokenizer), vocab_size=600)
    encoder = load_tokenizer(str(tokenizer), special_tokens_are_text=True)
    documents = [
        [np.array(encoder.encode(line, add_special_tokens=False).ids) for line in document.parts]
        for document in sources
    ]
    write_fairseq(shell.folder / "shared_pd" / "shard0", documents, str(tokenizer))
    (tokenizer / "config.json").write_text('{"model_type": "roberta"}', encoding="utf-8")
    with fake_hub() as made:
        made.add("FacebookAI/roberta-base", tokenizer)
        shell.environment |= {"HF_ENDPOINT": made.url, "HF_HUB_DISABLE_XET": "1"}
        yield


def own_text(shell: Shell) -> Iterator[None]:
    """The test has typed the commands of [your own text](own-text.md) before."""
    shutil.copytree(walked("own-text.md", shell), shell.folder, dirs_exist_ok=True)
    yield


def files(shell: Shell) -> Iterator[None]:
    """The examples use the files of [your own text](own-text.md)."""
    yield from own_text(shell)


def proteins(shell: Shell) -> Iterator[None]:
    """In place of your sequences, the test has 120 made-up proteins in `proteins.fasta`, and 300 made-up variants of
    one protein with a made-up value in `variants.fasta`."""
    draw = random.Random(7)
    motifs = ["".join(draw.choices(AMINO_ACIDS, k=8)) for _ in range(12)]
    made = ["".join(draw.choices(motifs, k=draw.randint(5, 14))) for _ in range(120)]
    records = [f">protein {number}\n{sequence}\n" for number, sequence in enumerate(made)]
    (shell.folder / "proteins.fasta").write_text("".join(records))
    records = []
    for number in range(300):
        place, letter = draw.randrange(40), draw.choice(AMINO_ACIDS)
        value = (AMINO_ACIDS.index(letter) - AMINO_ACIDS.index(made[0][place])) / 10
        sequence = made[0][:place] + letter + made[0][place + 1 :]
        records.append(f">{number}|{made[0][:3]}_{made[0][place]}{place + 1}{letter}|{value:.3f}\n{sequence}\n")
    (shell.folder / "variants.fasta").write_text("".join(records))
    yield


AMINO_ACIDS = "AVLIMFWGPCSTYNQDEHKR"
"""Those that are alike stand near each other."""


def fine_tuned(shell: Shell) -> Iterator[None]:
    """The examples use the files of [fine-tuning](finetuning.md)."""
    shutil.copytree(walked("finetuning.md", shell), shell.folder, dirs_exist_ok=True)
    yield


def walked(name: str, shell: Shell) -> Path:
    """Where the walk through that page has left its files."""
    with alone(name, shell) as left:
        if not left.exists():
            page = read_page(DOCS / name)
            other = Shell(Path(tempfile.mkdtemp(dir=shell.root)), shell.environment, shell.walks)
            try:
                for given in page.given or []:
                    next(GIVEN[given](other))
                walk(page, other, {})
            finally:
                other.close()
        return Path(left.read_text())


def sentences(shell: Shell) -> Iterator[None]:
    """In place of your examples, the test has 320 made-up sentences about the same six subjects."""
    rows = made_up.labelled(320, seed=9)
    # Pages show the first predictions. Of these three, models that differ by rounding alone are more or less sure.
    unsure, rest = rows[120:123], rows[123:]
    for name, part in (("subjects.csv", rows[:120]), ("subjects-test.csv", rest + unsure)):
        with open(shell.folder / name, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("text", "subject"), *part])
    yield


def pairs(shell: Shell) -> Iterator[None]:
    """In place of BLiMP, it has 20 made-up pairs in its form."""
    blimp = shell.folder / "blimp" / "data"
    blimp.mkdir(parents=True)
    with open(blimp / "word_order.jsonl", "w", encoding="utf-8") as file:
        for good, bad in made_up.pairs(20, seed=4):
            record = {"sentence_good": good, "sentence_bad": bad, "UID": "word_order", "field": "syntax"}
            file.write(json.dumps(record) + "\n")
    yield


def sequences(shell: Shell) -> Iterator[None]:
    """In place of your sequences, it has 20 made-up genes and proteins."""
    for name, kind, alphabet in (("genome.fa", "gene", "ACGT"), ("proteins.faa", "protein", "ACDEFGHIKLMNPQRSTVWY")):
        Path(shell.folder, name).write_text(made_up.fasta(kind, alphabet), encoding="utf-8")
    yield


def no_mask(shell: Shell) -> Iterator[None]:
    """`FOLDER` is a model whose tokenizer has no mask token."""
    folder = shell.folder / "FOLDER"
    shutil.copytree(shell.folder / "model", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("mask_token", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["content"] != "<mask>"]
    tokenizer["model"]["vocab"].pop("<mask>", None)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    yield


def bucket(shell: Shell) -> Iterator[None]:
    """In place of Cloud Storage, it has a made-up one on this machine."""
    pytest.importorskip("gcsfs", reason="needs the extra gcp")
    with fake_cloud() as storage:
        make_bucket(storage, {"name": "bucket"})
        shell.environment |= {"STORAGE_EMULATOR_HOST": storage.url, "MASKWRIGHT_CACHE": str(shell.root / "cache")}
        yield


def letters(shell: Shell) -> Iterator[None]:
    """In place of your text, the test has 600 made-up letters in `letters/`."""
    folder = shell.folder / "letters"
    folder.mkdir()
    text = "\n\n".join(made_up.notes(600, seed=1, subjects=made_up.LETTERS))
    Path(folder, "letters.txt").write_text(text + "\n", encoding="utf-8")
    yield


def hub(shell: Shell) -> Iterator[None]:
    """In place of the Hugging Face Hub, it has a small one of its own, and in place of ModernBERT-base the two layers
    of [your own text](own-text.md)."""
    with fake_hub() as made:
        made.add("answerdotai/ModernBERT-base", walked("own-text.md", shell) / "model")
        shell.environment |= {"HF_ENDPOINT": made.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        yield


def original(shell: Shell) -> Iterator[None]:
    """In place of your folder, the test has a small one with the faults of the original script, `data-original`, and
    `MASKWRIGHT_CACHE` is `/cache`."""
    shell.environment |= {"MASKWRIGHT_CACHE": str(shell.root / "cache")}
    texts = [document.text for document in Sources([str(shell.folder / "corpus")], layout="sentences")]
    write_folder(shell.folder / "data-original", texts, str(shell.folder / "tokenizer"), 64, 300)
    yield


def readme(shell: Shell) -> Iterator[None]:
    """In place of your files, of both recipes and of the Hugging Face Hub, it has very small ones."""
    for name in ("corpus", "recipes"):
        (shell.folder / name).mkdir()
    for number in range(2):
        text = "\n\n".join(made_up.notes(200, number)) + "\n"
        (shell.folder / "corpus" / f"notes-{number}.txt").write_text(text, encoding="utf-8")
    next(sentences(shell))
    (shell.folder / "subjects.csv").rename(shell.folder / "news.csv")
    (shell.folder / "subjects-test.csv").rename(shell.folder / "news-test.csv")
    shutil.copy(shell.folder / "news-test.csv", shell.folder / "new.csv")
    for name in ("recipes/modern.yaml", "recipes/continue-modernbert.yaml"):
        (shell.folder / name).write_text(made_up.SMALL_RECIPES[name], encoding="utf-8")
    yield from hub(shell)


def shards(shell: Shell) -> Iterator[None]:
    """In place of your storage, the test has `~/shared` with a small tokenizer and two Arrow files of int16, stored as
    id - 25000, each document between `<s>` and `</s>`, with `meta/notes_counts.csv`."""
    shared = shell.folder.parent / "shared"
    tokenizer = str(shared / "tokenizer")
    next(notes(shell))
    sources = Sources([str(shell.folder / "corpus")], layout="sentences")
    train_tokenizer(sources, tokenizer, vocab_size=680)
    encoder, counts = load_tokenizer(tokenizer, special_tokens_are_text=True), ["dataset/filename,documents,tokens"]
    documents = [np.array(encoder.encode(document.text).ids) for document in sources]
    schema = arrow.schema([("tokens", arrow.int16())])
    for name, part in (("a.arrow", documents[:600]), ("b.arrow", documents[600:])):
        path = shared / "roberta_v3" / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with arrow.ipc.new_file(str(path), schema) as writer:
            for one in part:
                column = arrow.array((one - 25000).astype(np.int16))
                writer.write_batch(arrow.record_batch([column], schema=schema))
        counts.append(f"/notes/{name},{len(part)},{sum(map(len, part))}")
    meta = shared / "roberta_v3" / "meta"
    meta.mkdir()
    (meta / "notes_counts.csv").write_text("\n".join(counts) + "\n")
    shutil.rmtree(shell.folder / "corpus")
    yield


def clone(shell: Shell) -> Iterator[None]:
    """The test types these commands in a clone of maskwright."""
    for name in ("src", "deploy", "recipes", "requirements", "pyproject.toml", "README.md", "LICENSE", ".dockerignore"):
        (shell.folder / name).symlink_to(DOCS.parent / name)
    yield


def a_ray_cluster(shell: Shell) -> Iterator[None]:
    """A test types these commands on a Ray cluster of one machine with two CPUs, and all outputs are what it saw."""
    if why := why_not():
        pytest.skip(why)
    pytest.importorskip("ray", reason="needs the extra ray")
    with ray_cluster(shell.root, shell.folder.parent) as (network, environment):
        shell.enter = network.words(folder=shell.folder)
        shell.environment = environment
        yield


def a_slice(shell: Shell) -> Iterator[None]:
    """In place of Google Cloud, the test has a made-up TPU API behind the real gcloud, and a made-up bucket; the two
    hosts are folders of this machine, and they really train, on its CPU."""
    pytest.importorskip("gcsfs", reason="needs the extra gcp")
    if not shutil.which("gcloud"):
        pytest.skip("needs gcloud")
    next(notes(shell))
    with a_slice_of_two(shell):
        code, output = shell.run(STORE, 120)
        assert code == 0, output
        yield


def lab(shell: Shell) -> Iterator[None]:
    """In place of Google Cloud, the test has a made-up one, where the disk of `lab.yaml` is filled and its cluster was
    deleted by `env down`."""
    from pages.google import made

    blocks = read_page(DOCS / "google-cloud.md").blocks
    text = next("\n".join(block.body) for block in blocks if block.file == "lab.yaml")
    (shell.folder / "lab.yaml").write_text(text + "\n", encoding="utf-8")
    with made(shell, str(shell.folder / "lab.yaml")):
        yield


GIVEN: dict[str, Given] = {
    one.__name__: one
    for one in (
        *(nothing, notes, own_text, sentences, letters, hub, original, readme, shard, shards, clone),
        *(files, fine_tuned, pairs, sequences, proteins, no_mask, bucket, a_ray_cluster),
        *(lab, a_slice),
    )
}
