"""Other trainers' names for the keys of a run: transformers' Trainer and its scripts, pytorch-transformers, fairseq,
Lightning, torchrun."""

from __future__ import annotations

_KEYS = {
    "data_path data_dir datapath train_data": "data.store",
    "max_seq_length block_size seq_length sequence_length max_length tokens_per_sample": "data.seq_len",
    "sample_break_mode": "data.packing",
    "whole_word_mask mask_whole_words wwm": "masking.kind=whole_word",
    "mlm_probability mlm_prob mask_prob mask_probability masking_probability": "masking.rate",
    "mask_replace_prob": "masking.mask_share",
    "dupe_factor": "masking.epochs",
    "random_replace_prob random_token_prob": "masking.random_share",
    "model_type": "model.architecture",
    "arch": "model.architecture is the family and model.size its size: roberta and large for roberta_large",
    "model_name_or_path model_name base_model pretrained_model pretrained_model_path bert_model": "model.init_from",
    "d_model embed_dim encoder_embed_dim": "model.hidden_size",
    "num_layers n_layers n_layer encoder_layers": "model.num_hidden_layers",
    "num_heads n_heads n_head encoder_attention_heads": "model.num_attention_heads",
    "ffn_dim encoder_ffn_embed_dim": "model.intermediate_size",
    "max_position_embeddings max_positions max_pos": "model.max_seq_len",
    "hidden_dropout_prob": "model.hidden_dropout",
    "attention_probs_dropout_prob attention_dropout_prob attn_dropout": "model.attention_dropout",
    "optim optimizer_type": "optimizer.kind",
    "lr lrate learning_rate peak_lr max_lr": "optimizer.learning_rate",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_epsilon adam_eps epsilon": "optimizer.eps",
    "weight_decay wd": "optimizer.weight_decay",
    "max_grad_norm clip_norm gradient_clipping gradient_clip_val grad_clip": "optimizer.max_grad_norm",
    "lr_scheduler_type lr_scheduler": "schedule.kind",
    "max_steps max_update total_num_update num_training_steps train_steps num_steps": "schedule.steps",
    "warmup warmup_steps num_warmup_steps warmup_updates": "schedule.warmup_steps",
    "min_lr_ratio min_lr_rate": "schedule.final_lr_share",
    "per_device_train_batch_size per_gpu_train_batch_size micro_batch_size": "batch.micro_batch_rows",
    "mixed_precision torch_dtype": "engine.dtype",
    "bf16": "engine.dtype=bf16",
    "fp32": "engine.dtype=fp32",
    "multilang_sampling_alpha": "data.mixture_alpha",
    "dropout": "model.hidden_dropout",
    "max_sentences": "batch.micro_batch_rows",
    "num_cores tpu_cores": "engine.devices",
    "betas adam_betas": "the two are optimizer.beta1 and optimizer.beta2",
    "input_shapes": "ROWSxTOKENS is batch.micro_batch_rows and data.seq_len",
    "one_tpu": "engine.devices=1",
    "torch_compile": "engine.compile=on",
    "use_cpu no_cuda": "engine.device=cpu",
    "fsdp deepspeed": (
        "torch's processes share out the fp32 weights and the moments by themselves; with jax, engine.sharding=fsdp "
        "shards all weights"
    ),
    "save_every save_steps save_interval_updates ckp_interval": "checkpoint.save_every_steps",
    "save_total_limit keep_interval_updates num_ckps": "checkpoint.keep",
    "eval_steps eval_every validate_interval_updates": "evaluation.every_steps",
    "eval_strategy evaluation_strategy": "evaluation.every_steps says how often a run is judged",
    "max_eval_samples": "evaluation.max_rows",
    "logging_steps log_interval log_every report_interval": "logging.every_steps",
    "pregenerated_data": "data.store is that folder, with data.format=pregenerated",
    "warmup_ratio warmup_proportion": "schedule.warmup_steps is that share of schedule.steps, as a number of steps",
    "leave_unmasked_prob": "masking.mask_share and masking.random_share leave the rest unchanged",
    "batch_size train_batch_size global_batch_size": (
        "batch.micro_batch_rows is the batch of one device; times batch.virtual_workers it is the batch of an update"
    ),
    "gradient_accumulation_steps grad_accum_steps accumulate_grad_batches update_freq": (
        "batch.virtual_workers counts the micro-batches of an update on all devices: accumulation steps x devices; "
        "`maskwright import` works it out from the whole command"
    ),
    "num_train_epochs num_epochs n_epochs max_epoch max_epochs": "schedule.epochs",
    "early_stopping_patience": "evaluation.patience",
    "lr_scheduler_power": "schedule.power",
    "layerwise_lr_decay layer_lr_decay llrd": "optimizer.layer_decay",
    "train_file dataset_name dataset line_by_line": (
        "`maskwright data prepare TEXT --tokenizer FOLDER --to STORE` reads the text once; data.store names STORE"
    ),
    "validation_file validation_split_percentage": (
        "`maskwright data prepare --valid-fraction 0.01` holds documents out for evaluation"
    ),
    "tokenizer_name tokenizer vocab vocab_size vocab_file": (
        "`maskwright data prepare --tokenizer FOLDER` chooses the tokenizer, and the store keeps it"
    ),
    "reset_stepcount reset_optimizer": (
        "`maskwright pretrain CONFIG --run NEW --from RUN --fresh-optimizer` begins a run from the weights of another"
    ),
    "max_tokens": (
        "batch.micro_batch_rows counts rows of data.seq_len tokens on one device: N tokens are N / data.seq_len of them"
    ),
    "aggressive_cache": "there is nothing to set: files are mapped, and the system keeps what it has read in memory",
    "fp16": "engine.dtype=fp16",
    "report_to": "logging.report_to",
    "gradient_checkpointing activation_checkpointing": (
        "fewer batch.micro_batch_rows with more batch.virtual_workers make the same batch in less memory"
    ),
}
"""Their names -> the key, KEY=VALUE, or a sentence if the same thing is said in another way here. `Guide.nearest` finds
without an entry what is spelt like its key but for a typo or two."""
_BOTH = {
    "activation activation_fn activation_function hidden_act": (
        "the architecture has its own activation: GELU, and GeGLU in modernbert"
    ),
    "do_lower_case": "the tokenizer's own files decide whether it lowers letters",
    "precision": "engine.dtype is auto, fp32, bf16 or fp16",
    "accelerator strategy distribution_strategy": (
        "engine.device and engine.kind choose the hardware, `--processes N` starts a process for each GPU, and with "
        "jax engine.sharding is data, as ddp, or fsdp"
    ),
    "resume resume_from_checkpoint overwrite_output_dir restore_file reuse_job_dir": (
        "the same command with the same --run continues a run; to begin anew, give --run a new folder"
    ),
    "output_dir save_dir logdir": "the run directory is the option --run",
    "config config_file config_name": "CONFIG stands alone, in front of --run RUN",
    "dataloader_num_workers preprocessing_num_workers num_workers workers num_proc": (
        "there are no loader workers to set: batches are cut from memory-mapped files"
    ),
    "nproc_per_node gpus num_gpus n_gpu num_processes local_rank": (
        "`--processes N` starts a process for each GPU; see also engine.devices"
    ),
    "wandb mlflow trackio tensorboard aim_repo": (
        "logging.report_to lists them: tensorboard, wandb, mlflow, trackio; RUN/metrics.jsonl is for other tools"
    ),
    "wandb_project experiment_name": (
        "the services read their own variables, such as WANDB_PROJECT and MLFLOW_EXPERIMENT_NAME"
    ),
    "push_to_hub hub_model_id": "`maskwright export RUN --to FOLDER`, then `hf upload OWNER/NAME FOLDER`",
    "logging_strategy": "logging.every_steps says how often a line is logged",
    "save_strategy": "checkpoint.save_every_steps and checkpoint.save_every_seconds say how often a run is saved",
}
"""Sentences for pretraining and fine-tuning alike."""
_FINETUNING = {
    "train_file train_data_file": "data.train",
    "validation_file": "data.validation",
    "test_file": "data.test",
    "max_seq_length max_length seq_len": "data.max_seq_len",
    "max_train_samples": "data.fraction is a share of the examples, of each class alike",
    "num_classes num_labels": "the classes are those of the data; task.labels fixes their order",
    "batch_size train_batch_size per_device_train_batch_size": (
        "batch.examples counts the examples of an update, on all devices together"
    ),
    "gradient_accumulation_steps accumulate_grad_batches": "batch.virtual_workers computes batch.examples in N passes",
    "warmup_ratio warmup_proportion": "schedule.warmup_share",
    "eval_strategy evaluation_strategy": "a run is judged once an epoch, or every evaluation.every_steps",
    "metric_for_best_model": "evaluation.metric",
    "label_smoothing_factor": "optimizer.label_smoothing",
}
"""The same for keys that fine-tuning has in another place."""
_OPTIONS = {
    "output_dir save_dir logdir job_dir": "--run",
    "nproc_per_node gpus num_gpus": "--processes",
    "nnodes num_machines": "--num-nodes",
    "machine_rank": "--node-rank",
    "rdzv_endpoint": "--rendezvous",
    "tokenizer_name": "--tokenizer",
    "validation_split_percentage": "--valid-fraction",
}
"""Their names -> the option of a command."""

FINETUNING = {name: said for names, said in (_BOTH | _FINETUNING).items() for name in names.split()}
FOREIGN = {name: said for names, said in (_BOTH | _KEYS).items() for name in names.split()}
OPTIONS = {name: option for names, option in _OPTIONS.items() for name in names.split()}
