"""The options that torch and JAX are compared in, one run a row (`parity.py`); an architecture test keeps it complete.

Options that only decide what both engines are fed (masking, packing, rates) share a row with others, since each row
costs a compilation.
"""

from typing import Any

ROWS: dict[str, dict[str, Any]] = {
    "roberta": {
        "model.architecture": "roberta",
        "data.packing": "documents",
        "data.seq_len": 64,
        "batch.virtual_workers": 1,
        "batch.micro_batch_rows": 8,
        "masking.kind": "token",
        "optimizer.kind": "adamw",
        "schedule.kind": "linear",
        "schedule.steps": 60,
    },
    "modernbert with dropout, masking words": {
        "model.architecture": "modernbert",
        "model.hidden_dropout": 0.1,
        "model.attention_dropout": 0.2,
        "masking.kind": "whole_word",
    },
    "roberta with dropout, another seed": {"model.hidden_dropout": 0.1, "model.attention_dropout": 0.2, "seed": 7},
    "full sentences, masking spans at two rates": {
        "data.packing": "full_sentences",
        "masking.kind": "span",
        "masking.rate": 0.1,
        "masking.epochs": 1,
        "masking.causal_share": 0.3,
        "phases": [{"until_share": 0.5, "seq_len": 16, "rows_per_step": 16, "masking_rate": 0.4, "causal_share": 1.0}],
        "masking.mask_share": 0.5,
        "masking.random_share": 0.4,
        "schedule.kind": "constant",
    },
    "another shape, cosine": {
        "model.architecture": "distilbert",
        "model.hidden_size": 48,
        "model.num_hidden_layers": 3,
        "model.num_attention_heads": 3,
        "model.intermediate_size": 80,
        "model.max_seq_len": 40,
        "schedule.kind": "cosine",
        "schedule.final_lr_share": 0.1,
    },
    "adamw's constants, no clipping": {
        "model.architecture": "bert",
        "optimizer.learning_rate": 1e-3,
        "optimizer.beta1": 0.8,
        "optimizer.beta2": 0.95,
        "optimizer.eps": 1e-5,
        "optimizer.weight_decay": 0.2,
        "optimizer.max_grad_norm": None,
        "optimizer.layer_decay": 0.7,
        "schedule.kind": "polynomial",
        "schedule.power": 2.0,
    },
    "muon, modernbert": {
        "optimizer.kind": "muon",
        "model.architecture": "modernbert",
        "optimizer.max_grad_norm": 100.0,  # above all norms: nothing is clipped
    },
    "modernbert, local layers": {
        "model.architecture": "modernbert",
        "model.num_hidden_layers": 4,
        "model.global_attn_every_n_layers": 3,
        "model.local_attention": 8,
        "model.attention_dropout": 0.1,
    },
    "esm with dropout": {"model.architecture": "esm", "model.hidden_dropout": 0.1, "model.attention_dropout": 0.2},
    "4 devices, data, clipping hard": {
        "model.architecture": "xlm-roberta",
        "engine.devices": 4,
        "engine.sharding": "data",
        "batch.virtual_workers": 8,
        "optimizer.max_grad_norm": 0.05,
        "schedule.kind": "inverse_sqrt",
    },
    "4 devices, fsdp, muon, wsd": {
        "model.architecture": "camembert",
        "engine.devices": 4,
        "engine.sharding": "fsdp",
        "optimizer.kind": "muon",
        "optimizer.momentum": 0.9,
        "schedule.kind": "wsd",
        "schedule.decay_steps": 20,
        "schedule.warmup_steps": 5,
        "batch.virtual_workers": 4,
    },
}

NOT_COMPARED = {
    "data.store": "where the rows come from, before any engine",
    "data.mixture": "where the rows come from, before any engine",
    "data.mixture_alpha": "where the rows come from, before any engine",
    "data.format": "where the rows come from, before any engine",
    "data.arrow.tokenizer": "where the rows come from, before any engine",
    "data.arrow.column": "where the rows come from, before any engine",
    "data.arrow.token_offset": "where the rows come from, before any engine",
    "data.arrow.special_ids": "where the rows come from, before any engine",
    "data.arrow.special_tokens": "where the rows come from, before any engine",
    "data.arrow.valid_fraction": "where held-out rows come from, before any engine",
    "data.validation": "where held-out rows come from, before any engine",
    "model.new_head": "weights enter both engines by the same arrays",
    "model.init_from": "weights enter both engines by the same arrays",
    "schedule.epochs": "steps by another name",
    "schedule.warmup_share": "steps by another name",
    "schedule.decay_share": "steps by another name",
    "model.size": "a name for a shape, whose own keys are compared",
    "engine.kind": "what is compared",
    "engine.device": "cpu in both; on others nothing but the compiler differs",
    "engine.dtype": "fp32 in both; bf16 has a test of its own, rounding differs",
    "engine.compile": "torch alone",
    "engine.activation_checkpointing": "torch alone",
    "engine.threads": "the machine's",
    "engine.reproducibility": "torch alone: the order of its sums",
}
"""Keys that no row sets, with the reason. The sections checkpoint, health, evaluation and logging are the loop's."""
