"""What other trainers call the keys of a run: transformers' Trainer and its run_mlm.py, fairseq, torchrun.

A name stands for the key, for KEY=VALUE, or for a sentence where the same thing is said in another way here.
"""

from __future__ import annotations

GLOBAL_BATCH = (
    "batch.micro_batch_rows is the batch of one device; times batch.virtual_workers it is the batch of an update"
)
ACCUMULATION = (
    "batch.virtual_workers counts the micro-batches of an update on all devices: accumulation steps x devices"
)
EPOCHS = (
    "schedule.steps counts the updates of the run; `maskwright pretrain CONFIG --run RUN --dry-run` prints how many "
    "epochs they are"
)
TEXT = "`maskwright data prepare TEXT --tokenizer FOLDER --to STORE` reads the text once; data.store names STORE"
HELD_OUT = "`maskwright data prepare --valid-fraction 0.01` holds documents out for evaluation"
TOKENIZER = "`maskwright data prepare --tokenizer FOLDER` chooses the tokenizer, and the store keeps it"
RUN = "the run directory is the option --run of `maskwright pretrain`"
RESUME = "the same command with the same --run continues a run; to begin anew, give --run a new folder"
LOADER = "there are no loader workers to set: batches are cut from memory-mapped files"
PROCESSES = "`maskwright pretrain --processes N` starts a process for each GPU; see also engine.devices"
FP16 = "engine.dtype is bf16 or fp32; there is no fp16"
TRACKERS = "there is only logging.tensorboard, and RUN/metrics.jsonl for other tools"
HUB = "`maskwright export RUN --to FOLDER`, then `hf upload OWNER/NAME FOLDER`"
LESS_MEMORY = "fewer batch.micro_batch_rows with more batch.virtual_workers make the same batch in less memory"

_NAMES: dict[str, tuple[str, ...]] = {
    "data.store": ("data_path", "data_dir", "datapath", "train_data"),
    "data.seq_len": (
        "max_seq_length",
        "block_size",
        "seq_length",
        "sequence_length",
        "max_length",
        "tokens_per_sample",
    ),
    "data.packing": ("sample_break_mode",),
    "masking.kind=whole_word": ("whole_word_mask", "mask_whole_words", "wwm"),
    "masking.rate": ("mlm_probability", "mlm_prob", "mask_prob", "mask_probability", "masking_probability"),
    "masking.mask_share": ("mask_replace_prob",),
    "masking.random_share": ("random_replace_prob", "random_token_prob"),
    "model.architecture": ("model_type", "arch"),
    "model.init_from": ("model_name_or_path", "model_name", "base_model", "pretrained_model"),
    "model.hidden_size": ("d_model", "embed_dim", "encoder_embed_dim"),
    "model.num_hidden_layers": ("num_layers", "n_layers", "n_layer", "encoder_layers"),
    "model.num_attention_heads": ("num_heads", "n_heads", "n_head", "encoder_attention_heads"),
    "model.intermediate_size": ("ffn_dim", "encoder_ffn_embed_dim"),
    "model.max_seq_len": ("max_position_embeddings", "max_positions"),
    "model.hidden_dropout": ("hidden_dropout_prob", "dropout"),
    "model.attention_dropout": ("attention_probs_dropout_prob",),
    "optimizer.kind": ("optim", "optimizer_type"),
    "optimizer.learning_rate": ("lr", "learning_rate", "peak_lr", "max_lr"),
    "optimizer.beta1": ("adam_beta1",),
    "optimizer.beta2": ("adam_beta2",),
    "optimizer.eps": ("adam_epsilon", "adam_eps", "epsilon"),
    "optimizer.weight_decay": ("weight_decay", "wd"),
    "optimizer.max_grad_norm": ("max_grad_norm", "clip_norm", "gradient_clipping", "gradient_clip_val", "grad_clip"),
    "schedule.kind": ("lr_scheduler_type", "lr_scheduler"),
    "schedule.steps": ("max_steps", "max_update", "total_num_update", "num_training_steps", "train_steps"),
    "schedule.warmup_steps": ("warmup_steps", "num_warmup_steps", "warmup_updates"),
    "schedule.decay_steps": ("num_decay_steps",),
    "schedule.final_lr_share": ("min_lr_ratio", "min_lr_rate"),
    "batch.micro_batch_rows": ("per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size"),
    "engine.dtype": ("mixed_precision", "precision", "torch_dtype"),
    "engine.dtype=bf16": ("bf16",),
    "engine.dtype=fp32": ("fp32",),
    "engine.compile=on": ("torch_compile",),
    "engine.device=cpu": ("use_cpu", "no_cuda"),
    "engine.sharding=fsdp": ("fsdp", "deepspeed"),
    "checkpoint.save_every_steps": ("save_steps", "save_interval_updates"),
    "checkpoint.keep": ("save_total_limit", "keep_interval_updates"),
    "evaluation.every_steps": ("eval_steps", "validate_interval_updates"),
    "evaluation.max_rows": ("max_eval_samples",),
    "logging.every_steps": ("logging_steps", "log_interval"),
    "seed": ("data_seed",),
    "schedule.warmup_steps is that share of schedule.steps, as a number of steps": ("warmup_ratio",),
    "masking.mask_share and masking.random_share leave the rest unchanged": ("leave_unmasked_prob",),
    GLOBAL_BATCH: ("batch_size", "train_batch_size", "global_batch_size"),
    ACCUMULATION: ("gradient_accumulation_steps", "grad_accum_steps", "accumulate_grad_batches", "update_freq"),
    EPOCHS: ("num_train_epochs", "num_epochs", "n_epochs", "epochs", "max_epoch", "max_epochs"),
    TEXT: ("train_file", "dataset_name", "dataset", "line_by_line"),
    HELD_OUT: ("validation_file", "validation_split_percentage"),
    TOKENIZER: ("tokenizer_name", "tokenizer", "vocab_size"),
    RUN: ("output_dir", "save_dir"),
    RESUME: ("resume_from_checkpoint", "overwrite_output_dir", "restore_file"),
    LOADER: ("dataloader_num_workers", "preprocessing_num_workers", "num_proc"),
    PROCESSES: ("nproc_per_node", "num_gpus", "n_gpu", "num_processes"),
    FP16: ("fp16",),
    TRACKERS: ("report_to", "wandb", "wandb_project", "mlflow"),
    HUB: ("push_to_hub", "hub_model_id"),
    LESS_MEMORY: ("gradient_checkpointing", "activation_checkpointing"),
}
FOREIGN: dict[str, str] = {name: said for said, names in _NAMES.items() for name in names}

OPTIONS = {
    "output_dir": "--run",
    "save_dir": "--run",
    "nproc_per_node": "--processes",
    "num_gpus": "--processes",
    "nnodes": "--num-nodes",
    "num_machines": "--num-nodes",
    "machine_rank": "--node-rank",
    "rdzv_endpoint": "--rendezvous",
    "tokenizer_name": "--tokenizer",
    "validation_split_percentage": "--valid-fraction",
}
"""What other programs call options of our commands."""
