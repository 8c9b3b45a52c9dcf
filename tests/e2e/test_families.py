"""Each family of encoders from a folder that `transformers` saved, through every command, and back to its class."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import small_config

from maskwright.core.config import Engine, RunConfig
from maskwright.core.errors import StoppedEarly
from maskwright.data.prepare import PrepareOptions, prepare
from maskwright.model.hf.families import FAMILIES
from maskwright.tasks.evaluate import evaluate
from maskwright.tasks.export import export
from maskwright.tasks.fill import fill
from maskwright.tasks.models import load_model
from maskwright.tasks.preflight import prepare_run
from maskwright.tasks.pretrain import pretrain
from maskwright.text.sources import Sources
from maskwright.training import checkpoint
from maskwright.training.stop import StopRequest

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}
LOCAL = {"num_hidden_layers": 4, "local_attention": 16, "max_position_embeddings": 64}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "RoBERTa": ("roberta", "roberta", SMALL | {"max_position_embeddings": 66}),
    "XLM-RoBERTa": ("xlm-roberta", "xlm-roberta", SMALL | {"max_position_embeddings": 66}),
    "CamemBERT": ("camembert", "camembert", SMALL | {"max_position_embeddings": 66}),
    "BERT, cased": ("bert", "bert", SMALL | {"max_position_embeddings": 64}),
    "BERT, uncased": ("bert", "bert-uncased", SMALL | {"max_position_embeddings": 64}),
    "DistilBERT": ("distilbert", "bert-uncased", DISTILBERT | {"max_position_embeddings": 64}),
    "ModernBERT": ("modernbert", "modernbert", SMALL | LOCAL),
    "mmBERT": ("modernbert", "gemma", SMALL | LOCAL | {"local_rope_theta": 160_000.0}),
}
"""Family, tokenizer, and shape."""


def save_base(folder: Path, architecture: str, tokenizer: str, shape: dict[str, Any]) -> str:
    """What `transformers` makes of a shape and a tokenizer, with weights that it draws."""
    words = transformers.AutoTokenizer.from_pretrained(tokenizer)
    ids = {"pad": words.pad_token, "bos": words.cls_token or words.bos_token, "eos": words.sep_token or words.eos_token}
    named = {f"{role}_token_id": words.convert_tokens_to_ids(token) for role, token in ids.items()}
    prefix = FAMILIES[architecture].class_begins
    config = getattr(transformers, f"{prefix}Config")(vocab_size=len(words) + 3, **named, **shape)
    torch.manual_seed(0)
    getattr(transformers, f"{prefix}ForMaskedLM")(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def bits(run: Path) -> dict[str, bytes]:
    found = checkpoint.load_newest(str(run / "checkpoints"), set_aside=False)
    assert found
    return {name: value.tobytes() for name, value in found[0].parameters.items()}


def held_out_loss(theirs: transformers.PreTrainedModel, config: RunConfig) -> float:
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


@pytest.mark.parametrize("name", CASES)
def test_a_public_encoder_is_continued_and_comes_back(
    name: str, tokenizer_of: Callable[[str], str], corpus: Path, tmp_path: Path
) -> None:
    """Prepared with its own tokenizer, trained with dropout, stopped and resumed with the same bits, judged, exported
    and loaded by its class of transformers, which has the same held-out loss."""
    architecture, kind, shape = CASES[name]
    base = save_base(tmp_path / "base", architecture, tokenizer_of(kind), shape)
    store = prepare(
        Sources([str(corpus)], layout="sentences"), base, str(tmp_path / "store"), PrepareOptions(valid_fraction=0.1)
    )
    keys = {
        "model.init_from": base,
        "model.hidden_dropout": 0.1,
        "masking.kind": "whole_word",
        "data.seq_len": 48,
        "schedule.steps": 12,
    }
    config = small_config(store.location, **keys)
    pretrain(config, str(tmp_path / "run"))
    with pytest.raises(StoppedEarly):
        pretrain(config, str(tmp_path / "resumed"), stop_request=StopRequest(stop_after_steps=5))
    pretrain(config, str(tmp_path / "resumed"))
    assert bits(tmp_path / "run") == bits(tmp_path / "resumed")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["valid_loss"] for record in records if "valid_loss" in record]
    assert losses[-1] < losses[0] - 0.1
    folder = tmp_path / "exported"
    assert export(load_model(str(tmp_path / "run")), str(folder)) < 1e-5
    again = load_model(str(folder))
    assert again.config.local_layers == (2 if architecture == "modernbert" else 0)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert type(theirs).__name__ == f"{FAMILIES[architecture].class_begins}ForMaskedLM"
    assert held_out_loss(theirs, config) == pytest.approx(losses[-1], rel=1e-5)
    assert evaluate(again, store, seq_len=48, engine=Engine(device="cpu")).loss > 0.0
    mask = transformers.AutoTokenizer.from_pretrained(folder).mask_token
    assert fill(again, f"The fox {mask} the garden.", top=1)
