"""Small tokenizers of the kinds that public encoders have, made by `maskwright tokenizer train` or by the libraries, as
their models' folders hold them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from maskwright.text.sources import Sources
from maskwright.text.tokenizer import TrainedKind, train_tokenizer

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
CAMEMBERT = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}


def make_tokenizer(kind: str, corpus: Path, folder: str) -> str:
    """Writes the folder and returns it."""
    if kind in TRAINED:
        train(kind, corpus, folder)
        return folder
    maker = {"modernbert": _modernbert, "camembert": _camembert, "gemma": _gemma, "llama": _llama}[kind]
    tokenizer, names = maker(corpus)
    named = {f"{role}_token": token for role, token in names.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    return folder


def train(kind: str, corpus: Path, folder: str) -> None:
    lowercase, least = (
        kind == "bert-uncased",
        200 if kind.startswith("bert") else 2,
    )  # so that words have several pieces
    sources = Sources([str(corpus)], layout="sentences")
    train_tokenizer(sources, folder, kind=TRAINED[kind], vocab_size=400, min_frequency=least, lowercase=lowercase)


def with_words(folder: str, to: Path, *words: str) -> Path:
    """A copy of a byte-level BPE in which each of `words`, of letters alone, is a token, as in a larger vocabulary."""
    shutil.copytree(folder, to)
    whole = json.loads((to / "tokenizer.json").read_text())
    vocab, merges = json.loads((to / "vocab.json").read_text()), whole["model"]["merges"]
    whole["model"]["vocab"] = vocab  # with the special tokens, as RoBERTa's
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
            pair = [word[: end - 1], word[end - 1]]
            merges[:] = [pair, *(other for other in merges if other != pair)]  # none goes before it
    (to / "tokenizer.json").write_text(json.dumps(whole))
    (to / "vocab.json").write_text(json.dumps(vocab))
    (to / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
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
