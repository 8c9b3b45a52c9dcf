"""Each family of encoders from a folder that `transformers` saved, through every command, and back to its class."""

import importlib.util
import json
import os

import numpy as np
import pytest
import torch
import transformers
from conftest import small_config
from tokenizer_kinds import with_an_end

from maskwright.config.finetuning import build_finetune_config
from maskwright.config.pretraining import EngineSection
from maskwright.core import storage
from maskwright.core.errors import TokenizerError
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.labels.example import Example
from maskwright.model.facts import FACTS
from maskwright.model.hf.config import OF_CLASSIFIERS
from maskwright.model.hf.families import FAMILIES
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.finetune.prepare import finetune
from maskwright.tasks.measure.held_out import evaluate_sources
from maskwright.tasks.models.load import load_model
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.tasks.pretrain.run import pretrain
from maskwright.tasks.use.fill import fill
from maskwright.tasks.use.predict import ask, engine_for
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import copy_tokenizer
from maskwright.text.vocabulary import read_vocabulary

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}
LOCAL = {"num_hidden_layers": 4, "local_attention": 16, "max_position_embeddings": 64}
ESM = {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 32, "max_position_embeddings": 64}
DEBERTA = {
    "max_position_embeddings": 64,
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
    "position_buckets": 16,
    "position_biased_input": False,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
EUROBERT = {
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 250_000.0},
}
ULTRABERT = {
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 8,
    "prediction_head_size": 40,
    "initializer_range": 0.05,  # no norm stands between its head's matrices
}
CASES = {
    "RoBERTa": ("roberta", "roberta", SMALL | {"max_position_embeddings": 66}),
    "XLM-RoBERTa": ("xlm-roberta", "xlm-roberta", SMALL | {"max_position_embeddings": 66}),
    "CamemBERT": ("camembert", "camembert", SMALL | {"max_position_embeddings": 66}),
    "BERT, cased": ("bert", "bert", SMALL | {"max_position_embeddings": 64}),
    "BERT, uncased": ("bert", "bert-uncased", SMALL | {"max_position_embeddings": 64}),
    "DistilBERT": ("distilbert", "bert-uncased", DISTILBERT | {"max_position_embeddings": 64}),
    "ModernBERT": ("modernbert", "modernbert", SMALL | LOCAL),
    "ESM-2": ("esm", "esm", SMALL | ESM),
    "DeBERTa": ("deberta-v2", "deberta", SMALL | DEBERTA),
    "EuroBERT": ("eurobert", "eurobert", SMALL | EUROBERT),
    "UltraBERT": ("ultrabert", "modernbert", SMALL | ULTRABERT),
    "NomicBERT": ("nomic_bert", "bert-uncased", SMALL | {"max_position_embeddings": 64}),
    "GTE": ("gte", "xlm-roberta", SMALL | {"max_position_embeddings": 64}),
    "mmBERT": ("modernbert", "gemma", SMALL | LOCAL | {"local_rope_theta": 160_000.0}),
}
"""Family, tokenizer, and shape."""
LONG = ("DeBERTa", "UltraBERT", "GTE")
THINGS = ("the garden", "a bridge", "many letters", "the empty house", "blue paper", "stones")


def save_base(folder, architecture, tokenizer, shape):
    """What `transformers` makes of a shape and a tokenizer, with weights that it draws."""
    if architecture == "deberta-v2":  # of whose spm.model transformers 5 would make another tokenizer
        copy_tokenizer(tokenizer, str(folder))
        tokenizer = str(folder)
    if architecture == "eurobert":
        copy_tokenizer(tokenizer, str(folder))
        tokenizer = str(folder)
        with pytest.raises(TokenizerError, match="not one token before and one after it"):
            read_vocabulary(tokenizer)
        with_an_end(tokenizer)
    words = transformers.AutoTokenizer.from_pretrained(tokenizer)
    ids = {"pad": words.pad_token, "bos": words.cls_token or words.bos_token, "eos": words.sep_token or words.eos_token}
    named = {f"{role}_token_id": words.convert_tokens_to_ids(token) for role, token in ids.items()}
    named |= {"classifier_pooling": "mean"} if architecture == "modernbert" else {}
    prefix = FAMILIES[architecture].class_begins
    config = getattr(transformers, f"{prefix}Config")(vocab_size=len(words) + 3, **named, **shape)
    torch.manual_seed(0)
    getattr(transformers, f"{prefix}ForMaskedLM")(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def held_out_loss(theirs, config):
    """Theirs, of the rows and masks that the run was judged on, a document at a time."""
    total = count = 0.0
    for batch in prepare_run(config).objective().held_out:
        taken = batch.weights > 0
        labels = torch.full((batch.input_ids.size,), -100)
        labels[torch.from_numpy(batch.predict_index[taken]).long()] = torch.from_numpy(batch.labels[taken]).long()
        rows = zip(batch.input_ids, batch.segment_ids, labels.view(batch.input_ids.shape), strict=True)
        for ids, segments, wanted in rows:
            for number in range(1, segments.max() + 1):
                here = torch.from_numpy(segments == number)
                with torch.no_grad():
                    said = theirs(torch.from_numpy(ids).long()[here][None]).logits[0]
                total += float(torch.nn.functional.cross_entropy(said, wanted[here], reduction="sum"))
                count += int((wanted[here] != -100).sum())
    return total / count


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in CASES])
def test_a_public_encoder_is_continued_and_comes_back(name, tokenizer_of, corpus, tmp_path):
    """Prepared with its own tokenizer, trained with dropout, judged, exported and loaded by its class of transformers,
    which has the same held-out loss."""
    architecture, kind, shape = CASES[name]
    base = save_base(tmp_path / "base", architecture, tokenizer_of(kind), shape)
    if architecture == "esm":  # whose letters are capitals
        stories = sorted(corpus.rglob("*.txt")) if corpus.is_dir() else [corpus]
        corpus = tmp_path / "stories.txt"
        corpus.write_text("\n\n".join(path.read_text() for path in stories).upper())
    store = prepare(
        Request(
            Sources([str(corpus)], layout="sentences"),
            base,
            str(tmp_path / "store"),
            PrepareOptions(valid_fraction=0.1),
        )
    )
    keys = {
        "model.init_from": base,
        "model.hidden_dropout": 0.15,
        "masking.kind": "whole_word",
        "data.seq_len": 48,
        "schedule.steps": 12,
    }
    config = small_config(store.location, **keys)
    pretrain(config, str(tmp_path / "run"))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["valid_loss"] for record in records if "valid_loss" in record]
    assert losses[-1] < losses[0] - 0.1
    folder = tmp_path / "exported"
    before = storage.read_json(os.path.join(base, "config.json"))
    os.rename(base, tmp_path / "gone")  # the run has kept what its export needs
    onnx = architecture == "esm" and importlib.util.find_spec("onnxruntime") is not None  # others: test_onnx
    assert export(load_model(str(tmp_path / "run")), str(folder), onnx=onnx) < 1e-5
    os.rename(tmp_path / "gone", base)
    after, named = storage.read_json(str(folder / "config.json")), FAMILIES[architecture].keys
    kept = [
        named["attention_probs_dropout_prob"],
        *(key for key in (*OF_CLASSIFIERS, "classifier_pooling") if key in before),
    ]
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert not FACTS[architecture].centred or after[named["hidden_dropout_prob"]] == 0.15  # without such a dropout
    assert len(kept) > 1 or architecture in ("esm", "deberta-v2")  # without a dropout of classifiers in the folder
    again = load_model(str(folder))
    assert f"-> {losses[-1]:.4f}, masked" in (folder / "README.md").read_text()
    assert again.config.local_layers == (2 if architecture in ("modernbert", "ultrabert") else 0)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert type(theirs).__name__ == f"{FAMILIES[architecture].class_begins}ForMaskedLM"
    assert held_out_loss(theirs, config) == pytest.approx(losses[-1], rel=1e-5)
    scores = evaluate_sources(again, {"": store}, seq_len=48, engine=EngineSection(device="cpu"))
    assert scores.sources[""].loss > 0.0
    mask = transformers.AutoTokenizer.from_pretrained(folder).mask_token
    assert fill(again, f"The fox {mask} the garden.", top=1)
    pairs_are_told_alike(str(folder), tmp_path)


def pairs_are_told_alike(base, folder):
    """A head for pairs of texts is fine-tuned; its logits, of packed rows, are those of transformers for a pair a row.
    The folder is proven by `export`, which compares the tokens of pairs as well."""
    pairs = [(f"The fox saw {thing}.", f"Nobody crossed {thing}{' again' * n}.") for n, thing in enumerate(THINGS)]
    train = folder / "train.jsonl"
    with train.open("w") as file:
        for n in range(32):
            a, b = pairs[n % 6]
            file.write(json.dumps({"text": a, "text_pair": f"Story {n}. {b}", "label": "ab"[n % 2]}) + "\n")
    values = {
        "data": {"train": str(train), "text": "text", "text_pair": "text_pair", "label": "label"},
        "model": {"init_from": base},
        "optimizer": {"learning_rate": 3e-3},
        "schedule": {"steps": 3},
        "batch": {"examples": 8},
        "engine": {"device": "cpu", "dtype": "fp32", "threads": 1},
        "logging": {"report_to": []},
    }
    finetune(build_finetune_config(values, "pairs.yaml"), str(folder / "pairs"))
    model = load_model(str(folder / "pairs"))
    export(model, str(folder / "judge"), onnx=importlib.util.find_spec("onnxruntime") is not None)
    examples = [Example("x", n, text=a, text_pair=b) for n, (a, b) in enumerate(pairs)]
    found, _ = ask(engine_for(model, "cpu"), model, examples, 64)
    words = transformers.AutoTokenizer.from_pretrained(folder / "judge")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "judge").eval()
    for (a, b), shares in zip(pairs, found.probabilities, strict=True):
        with torch.no_grad():
            said = theirs(**words(a, b, return_tensors="pt")).logits.softmax(-1)[0]
        assert np.abs(said.numpy() - shares).max() < 1e-5
