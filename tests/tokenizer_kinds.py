"""Small tokenizers of the kinds that public encoders have, made by `maskwright tokenizer train` or by the libraries, as
their models' folders hold them."""

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.esm.configuration_esm import get_default_vocab_list

from maskwright.text.sources import Sources
from maskwright.text.tokenizer import TrainedKind, train_tokenizer
from maskwright.text.vocabulary import merges_of, read_tokenizer, token_ids, token_strings

KINDS = ("roberta", "modernbert", "bert", "bert-uncased", "xlm-roberta", "camembert", "gemma", "llama")
TRAINED: dict[str, TrainedKind] = {
    "roberta": "bpe",
    "bert": "wordpiece",
    "bert-uncased": "wordpiece",
    "xlm-roberta": "unigram",
}
"""Those that the product trains, and its name for their kind."""
BERT = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
GEMMA = {"pad": "<pad>", "eos": "<eos>", "bos": "<bos>", "unk": "<unk>", "mask": "<mask>"}
EUROBERT = {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>", "pad": "<|end_of_text|>", "mask": "<|mask|>"}
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA_3 += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How its tokenizer, which EuroBERT has, splits text."""
CAMEMBERT = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}


def make_tokenizer(kind: str, corpus: Path, folder: str) -> str:
    """Writes the folder and returns it."""
    if kind in TRAINED:
        train(kind, corpus, folder)
        return folder
    if kind == "esm":
        return _esm(Path(folder))
    if kind == "deberta":
        return _deberta(corpus, Path(folder))
    makers = {"modernbert": _modernbert, "camembert": _camembert, "gemma": _gemma, "llama": _llama}
    maker = (makers | {"eurobert": _eurobert})[kind]
    tokenizer, names = maker(corpus)
    named = {f"{role}_token": token for role, token in names.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    return folder


def _esm(folder: Path) -> str:
    """The class is a slow one: the folder has no tokenizer.json, as the published ones."""
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(get_default_vocab_list()))
    transformers.EsmTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


def _deberta(corpus: Path, folder: Path) -> str:
    """A SentencePiece model and no tokenizer.json, as the published v3 have."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    first = [BERT[role] for role in ("pad", "cls", "sep", "unk")]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=first, unk_token="[UNK]", show_progress=False)
    tokenizer.train([str(corpus)], trainer)
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
    (folder / "spm.model").write_bytes(sentencepiece_model(pieces, unknown=3))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    return str(folder)


def sentencepiece_model(
    pieces: list[tuple[str, float]],
    unknown: int,
    kind: int = 1,
    control: tuple[str, ...] = (),
    user: tuple[str, ...] = (),
) -> bytes:
    """What the library writes: pieces with their scores and kinds, the trainer's settings and the normalizer's."""

    def field(number: int, value: bytes | int) -> bytes:
        if isinstance(value, int):
            return integer(number << 3) + integer(value)
        return integer(number << 3 | 2) + integer(len(value)) + value

    def integer(value: int) -> bytes:
        *more, last = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
        return bytes([*(byte | 0x80 for byte in more), last])

    score = integer(2 << 3 | 5)
    kinds = dict.fromkeys(control, 3) | dict.fromkeys(user, 4)
    entries = [
        field(1, piece.encode()) + score + struct.pack("<f", value) + field(3, kinds.get(piece, 1))
        for piece, value in pieces
    ]
    trainer = field(3, kind) + field(4, len(pieces)) + integer(10 << 3 | 5) + struct.pack("<f", 0.9995)
    normalizer = field(1, b"identity") + field(3, 1) + field(4, 1) + field(5, 1)
    return (
        b"".join(field(1, entry) for entry in entries) + field(2, trainer + field(40, unknown)) + field(3, normalizer)
    )


def train(kind: str, corpus: Path, folder: str) -> None:
    lowercase, least = (
        kind == "bert-uncased",
        200 if kind.startswith("bert") else 2,
    )  # so that words have several pieces
    sources = Sources([str(corpus)], layout="sentences")
    train_tokenizer(sources, folder, kind=TRAINED[kind], vocab_size=400, min_frequency=least, lowercase=lowercase)


DECLARED = (
    AddedToken("[USER]", normalized=False, special=True),
    AddedToken("<e1>", normalized=False, lstrip=True, special=True),
    AddedToken("</e1>", normalized=False, rstrip=True, special=True),
    AddedToken("<sep>", normalized=False, special=True),
    AddedToken("@URL", normalized=False, single_word=True, special=True),
    AddedToken("[the turn]", normalized=True, special=True),
)
"""Placeholders, entity markers and separators as users add them to a tokenizer."""


def with_declared(folder: str, to: Path, tokens: Sequence[AddedToken] = DECLARED) -> str:
    """A copy of a tokenizer with these special tokens, as `transformers` saves it."""
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    auto.add_special_tokens({"extra_special_tokens": [*tokens]})
    auto.save_pretrained(to)
    return str(to)


def older_files(folder: str, to: Path, *names: str) -> None:
    """Copies these files of a tokenizer, or writes them as they were before `tokenizer.json`."""
    for name in names:
        if Path(folder, name).exists():
            shutil.copyfile(Path(folder, name), to / name)
        elif name == "vocab.json":
            (to / name).write_text(json.dumps(token_ids(folder), ensure_ascii=False))
        elif name == "vocab.txt":
            (to / name).write_text("".join(f"{token}\n" for token in token_strings(folder)))
        else:
            merges = merges_of(read_tokenizer(folder)[0]["model"])
            (to / name).write_text("\n".join(["#version: 0.2", *map(" ".join, merges)]) + "\n")


def with_words(folder: str, to: Path, *words: str) -> Path:
    """A copy of a byte-level BPE in which each of `words`, of letters alone, is a token, as in a larger vocabulary."""
    shutil.copytree(folder, to)
    whole = json.loads((to / "tokenizer.json").read_text())
    vocab, merges = token_ids(folder), whole["model"]["merges"]
    whole["model"]["vocab"] = vocab  # with the special tokens, as RoBERTa's
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
            pair = [word[: end - 1], word[end - 1]]
            merges[:] = [pair, *(other for other in merges if other != pair)]  # none goes before it
    (to / "tokenizer.json").write_text(json.dumps(whole))
    return to


def _framed(tokenizer: Tokenizer, begin: str, end: str, pair: str) -> None:
    ids = [(token, tokenizer.token_to_id(token)) for token in (begin, end)]
    single = f"{begin} $A {end}"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _modernbert(corpus: Path) -> tuple[Tokenizer, dict[str, str]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(BERT.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train([str(corpus)], trainer)
    tokenizer.add_tokens([AddedToken("    ", normalized=True), AddedToken("|||IP|||", normalized=False)])
    _framed(tokenizer, "[CLS]", "[SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    return tokenizer, BERT


def _eurobert(corpus: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Llama 3's, which has no unknown token: special tokens come last, padding is the end, and only the beginning is
    in the template."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(corpus)], trainer)
    begin = EUROBERT["bos"]
    tokenizer.add_special_tokens([begin, EUROBERT["eos"], EUROBERT["mask"]])
    pair = f"{begin} $A {begin}:1 $B:1"
    ids = [(begin, tokenizer.token_to_id(begin))]
    template = processors.TemplateProcessing(single=f"{begin} $A", pair=pair, special_tokens=ids)
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer, EUROBERT


def with_an_end(folder: str) -> None:
    """What docs/recipes.md has its readers do with EuroBERT's tokenizer."""
    page = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
    code = page.split("### EuroBERT")[1].split("```python\n")[1].split("```")[0]
    exec(code.replace("models/EuroBERT-210m", folder), {})


def _camembert(corpus: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Its special tokens are not where RoBERTa has them, and it normalizes."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    first = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<s>", "</s>"]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=first, unk_token="<unk>", show_progress=False)
    tokenizer.train([str(corpus)], trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    _framed(tokenizer, "<s>", "</s>", "<s> $A </s> </s> $B </s>")
    return tokenizer, CAMEMBERT


def _sentencepiece(corpus: Path, normalizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # only to train: no piece has two words
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=650, special_tokens=[*GEMMA.values(), *bytes_], show_progress=False)
    tokenizer.train([str(corpus)], trainer)
    tokenizer = Tokenizer(tokenizer.model)
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(GEMMA.values()))
    tokenizer.add_tokens(["\n"])
    _framed(tokenizer, "<bos>", "<eos>", "<bos> $A <eos> $B:1 <eos>:1")
    return tokenizer


def _gemma(corpus: Path) -> tuple[Tokenizer, dict[str, str]]:
    tokenizer = _sentencepiece(corpus, normalizers.Replace(" ", "▁"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer, GEMMA


def _llama(corpus: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Its first tokenizers put ▁ before every text, also where a space is there already."""
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    return _sentencepiece(corpus, normalizers.Sequence(steps)), GEMMA
