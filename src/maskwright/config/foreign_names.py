"""Other trainers' names for the keys of a run and for their values, for options and for commands: transformers' Trainer
and its scripts, pytorch-transformers, fairseq, Lightning, axolotl, composer, torchrun.

Their name leads to a key, KEY=VALUE, several of either with spaces between them, or a sentence. Several keys without
values share the typed value: `--input_shapes 2x512`. `Guide.overrides` turns it into `--set`."""

from __future__ import annotations

from maskwright.core.hub import OWNERS

_KEYS = {
    "data_path data_dir datapath train_data": "data.store",
    "max_seq_length block_size seq_length sequence_length sequence_len max_length tokens_per_sample": "data.seq_len",
    "sample_break_mode": "data.packing",
    "sample_packing": "data.packing=full_sentences",
    "whole_word_mask mask_whole_words wwm": "masking.kind=whole_word",
    "mlm_probability mlm_prob mask_prob mask_probability masking_probability": "masking.rate",
    "mask_replace_prob": "masking.mask_share",
    "dupe_factor": "masking.epochs",
    "random_replace_prob random_token_prob": "masking.random_share",
    "model_type": "model.architecture",
    "arch": "model.architecture model.size",
    "model_name_or_path model_name base_model pretrained_model pretrained_model_path bert_model": "model.init_from",
    "d_model embed_dim encoder_embed_dim": "model.hidden_size",
    "num_layers n_layers n_layer encoder_layers": "model.num_hidden_layers",
    "num_heads n_heads n_head encoder_attention_heads": "model.num_attention_heads",
    "ffn_dim encoder_ffn_embed_dim": "model.intermediate_size",
    "max_position_embeddings max_positions max_pos": "model.max_seq_len",
    "hidden_dropout_prob": "model.hidden_dropout",
    "attention_probs_dropout_prob attention_dropout_prob attn_dropout": "model.attention_dropout",
    "optim optimizer optimizer_type optimizer_name": "optimizer.kind",
    "lr lrate learning_rate peak_lr max_lr": "optimizer.learning_rate",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "betas adam_betas": "optimizer.beta1 optimizer.beta2",
    "adam_epsilon adam_eps epsilon": "optimizer.eps",
    "weight_decay wd": "optimizer.weight_decay",
    "max_grad_norm clip_norm gradient_clipping gradient_clip_val grad_clip": "optimizer.max_grad_norm",
    "lr_scheduler_type lr_scheduler lr_schedule scheduler scheduler_type": "schedule.kind",
    "max_steps max_update total_num_update num_training_steps max_train_steps train_steps num_steps": "schedule.steps",
    "epochs num_train_epochs num_epochs n_epochs max_epoch max_epochs": "schedule.epochs",
    "warmup warmup_steps num_warmup_steps warmup_updates": "schedule.warmup_steps",
    "lr_scheduler_power power": "schedule.power",
    "min_lr_ratio min_lr_rate alpha_f": "schedule.final_lr_share",
    "min_lr eta_min lr_end end_learning_rate": (
        "schedule.final_lr_share is that rate divided by optimizer.learning_rate"
    ),
    "t_warmup": "schedule.warmup_share is a share of the run, and schedule.warmup_steps counts updates",
    "max_duration": "schedule.steps counts updates, and schedule.epochs passes over the text",
    "per_device_train_batch_size per_gpu_train_batch_size max_sentences b_size": "batch.micro_batch_rows",
    "simulated_gpus": "batch.virtual_workers",
    "micro_batch_size device_train_microbatch_size": "batch.micro_batch_rows",
    "input_shapes": "batch.micro_batch_rows data.seq_len",
    "dropout": "model.hidden_dropout",
    "eval_strategy evaluation_strategy": "evaluation.every_steps sets how often a run is evaluated",
    "max_eval_samples": "evaluation.max_rows",
    "limit_val_batches": "evaluation.max_rows sets the number of held-out rows",
    "limit_train_batches overfit_batches max_train_samples": (
        "schedule.steps ends a run earlier; to train on part of the text, prepare a store of fewer files"
    ),
    "multilang_sampling_alpha": "data.mixture_alpha weighs the stores of data.mixture, one for each language",
    "pregenerated_data": "set data.store to that folder, and data.format=pregenerated",
    "leave_unmasked_prob": "what masking.mask_share and masking.random_share leave stays unchanged",
    "batch_size train_batch_size global_batch_size": (
        "batch.micro_batch_rows is the batch of one device; times batch.virtual_workers, it is the batch of an update"
    ),
    "gradient_accumulation_steps grad_accum_steps accumulate_grad_batches update_freq": (
        "batch.virtual_workers is the number of micro-batches in an update: accumulation steps x devices; "
        "`maskwright import` computes it from the whole command"
    ),
    "layerwise_lr_decay layer_lr_decay llrd": "optimizer.layer_decay",
    "train_file dataset_name dataset line_by_line": (
        "`maskwright data prepare TEXT --tokenizer FOLDER --to STORE` reads the text once; set data.store to STORE"
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
    "max_tokens required_batch_size_multiple": (
        "batch.micro_batch_rows is a number of rows of data.seq_len tokens: set it to N / data.seq_len"
    ),
    "freq_weighted_replacement": "unsupported: random tokens are drawn evenly",
    "encoder_layerdrop activation_dropout": "unsupported: there is no such dropout",
}
"""For pretraining. `Guide.nearest` needs no entry for names that differ from their key by a typo or two."""
_BOTH = {
    "warmup_ratio warmup_proportion": "schedule.warmup_share",
    "mixed_precision torch_dtype precision": "engine.dtype",
    "bf16": "engine.dtype=bf16",
    "fp16": "engine.dtype=fp16",
    "fp32": "engine.dtype=fp32",
    "num_cores tpu_cores tpu_num_cores": "engine.kind=jax engine.device=tpu engine.devices",
    "one_tpu": "engine.kind=jax engine.device=tpu engine.devices=1",
    "torch_compile": "engine.compile=on",
    "gradient_checkpointing activation_checkpointing": "engine.activation_checkpointing=on",
    "use_cpu no_cuda": "engine.device=cpu",
    "fsdp deepspeed": (
        "processes always shard the fp32 weights and the moments; with jax, engine.sharding=fsdp also shards the "
        "gradients"
    ),
    "random_seed manual_seed data_seed": "seed",
    "save_every save_steps save_interval_updates ckp_interval": "checkpoint.save_every_steps",
    "save_total_limit keep_interval_updates num_ckps": "checkpoint.keep",
    "eval_steps eval_every validate_interval_updates": "evaluation.every_steps",
    "val_check_interval eval_interval": "evaluation.every_steps",
    "logging_steps log_interval log_every log_every_n_steps report_interval": "logging.every_steps",
    "early_stopping_patience": "evaluation.patience",
    "report_to logger": "logging.report_to",
    "fast_dev_run": "`--dry-run` checks the run, and `--stop-after-steps 1` trains one step and saves",
    "cache_dir": "set the variable HF_HUB_CACHE to it, where models of the Hub are kept",
    "tpu tpu_ip conda_env": (
        "`maskwright submit slice NAME CONFIG --run RUN` trains on your TPU slice, and `submit kubernetes --env-file "
        "ENV.yaml` on one that an environment creates"
    ),
    "user_dir trust_remote_code": "unsupported: maskwright does not run code that comes with a model",
    "activation activation_fn activation_function hidden_act": (
        "the architecture decides: GELU, or GeGLU in modernbert"
    ),
    "accelerator strategy distribution_strategy": (
        "engine.device and engine.kind choose the hardware, `--processes N` starts a process for each GPU, and with "
        "jax, engine.sharding is data (as ddp) or fsdp"
    ),
    "output_dir save_dir logdir job_dir default_root_dir save_folder run_name": "give the run directory as --run",
    "config config_file config_name": "give CONFIG without an option, before --run RUN",
    "nproc_per_node nprocs_per_node gpus num_gpus n_gpu num_processes distributed_world_size": (
        "`--processes N` starts a process for each GPU; see also engine.devices"
    ),
    "wandb mlflow trackio tensorboard aim_repo use_wandb": (
        "list them in logging.report_to: tensorboard, wandb, mlflow; other tools can read RUN/metrics.jsonl"
    ),
    "wandb_project experiment_name": (
        "set the service's own variable, such as WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME"
    ),
    "push_to_hub hub_model_id": "`maskwright export RUN --to FOLDER`, then `hf upload OWNER/NAME FOLDER`",
    "logging_strategy": "logging.every_steps sets how often a line is logged",
    "save_strategy": "checkpoint.save_every_steps and checkpoint.save_every_seconds set how often a run is saved",
}
"""Sentences for both pretraining and fine-tuning."""
NOT_NEEDED = {
    "task criterion": "`pretrain` always predicts masked tokens, with cross entropy",
    "train_subset valid_subset ignore_unused_valid_subsets": (
        "a store contains the training split and what `data prepare` held out"
    ),
    "do_train do_eval do_predict": "a run always trains, and evaluates on held-out documents",
    "validate_interval check_val_every_n_epoch": "evaluation.every_steps counts steps, not epochs",
    "disable_validation": "without evaluation.every_steps, a run evaluates only at its start and end",
    "per_device_eval_batch_size eval_accumulation_steps max_sentences_valid batch_size_valid max_tokens_valid": (
        "evaluation uses as many rows at once as fit"
    ),
    "finetune": "CONFIG decides",
    "no_epoch_checkpoints save_interval keep_last_epochs keep_best_checkpoints no_save_optimizer_state "
    "save_safetensors save_only_model save_on_each_node": (
        "checkpoints are always complete, and follow steps and seconds (checkpoint.*)"
    ),
    "resume resume_from_checkpoint ignore_data_skip overwrite_output_dir restore_file reuse_job_dir ckpt_path": (
        "the same command with the same --run continues a run; to start a new run, give --run a new folder"
    ),
    "tensorboard_logdir tb_log_dir logging_dir": "logging.report_to: tensorboard writes to RUN/events",
    "log_format log_file log_steps track_learning_rate disable_tqdm log_level log_level_replica logging_first_step "
    "logging_nan_inf_filter": "the run directory contains log.txt and metrics.jsonl, with the learning rate",
    "metrics_debug tpu_metrics_debug tpu_report suppress_loss_report profile profiler debug": (
        "RUN/engine.json records what was compiled, and `--profile-steps 3` writes a trace"
    ),
    "deterministic full_determinism benchmark": (
        "engine.reproducibility: exact, the default, makes runs with one seed equal bit by bit"
    ),
    "shuffle_train_dataset shuffle_seed grouped_shuffling": "each epoch is shuffled by the seed",
    "tf32 bf16_full_eval fp16_full_eval fp16_backend fp16_opt_level half_precision_backend": (
        "engine.dtype decides for training and evaluation"
    ),
    "use_gpu bf16_adam memory_efficient_fp16 memory_efficient_bf16 use_cpu_offload": "engine.* decides",
    "loss_scale fp16_init_scale": "fp16 always scales its loss, and finds the factor by itself",
    "torch_compile_backend torch_compile_mode gradient_checkpointing_kwargs": "engine.* offers one way",
    "flash_attention attn_implementation": "the engine uses its fastest attention",
    "auto_find_batch_size": "micro-batches that do not fit into memory are computed in parts",
    "ddp_backend ddp_find_unused_parameters ddp_bucket_cap_mb ddp_timeout distributed_init_method distributed_port "
    "distributed_rank distributed_backend device_id local_rank": (
        "--processes, or --num-nodes and --rendezvous, connect the processes of a run"
    ),
    "dataloader_num_workers preprocessing_num_workers num_workers workers num_proc dataloader_pin_memory "
    "dataloader_prefetch_factor dataloader_persistent_workers dataset_impl": (
        "batches come from memory-mapped files, without loader workers"
    ),
    "window_shards": (
        "rows of all shards are shuffled together, and a store in a bucket is copied to the machine as a whole"
    ),
    "dataloader_drop_last": "rows left over from one epoch go into the next, so none is dropped",
    "skip_invalid_size_inputs_valid_test group_by_length pad_to_max_length length_column_name train_sampling_strategy "
    "max_source_positions max_target_positions shorten_method shorten_data_split_list": (
        "texts are packed into rows or cut, so none is too long and there is almost no padding"
    ),
    "reduce_memory aggressive_cache no_cache overwrite_cache keep_in_memory streaming": (
        "files are memory-mapped, and the system caches what it reads"
    ),
    "do_lower_case use_fast_tokenizer sentencepiece_model": "the tokenizer's own files decide",
    "pooler_dropout": "pretraining has no pooler",
    "prediction_loss_only include_for_metrics remove_unused_columns label_names": "not needed",
    "token hub_private_repo hub_strategy hub_always_push": "`hf auth login` keeps the token",
}
"""Options that need no replacement, and why."""
_FINETUNING = {
    "train_file train_data_file": "data.train",
    "validation_file": "data.validation",
    "test_file": "data.test",
    "max_seq_length max_length seq_len": "data.max_seq_len",
    "limit_train_batches overfit_batches": "data.fraction",
    "max_train_samples": "data.fraction sets the share of the examples to train on",
    "limit_val_batches max_eval_samples": "give a shorter file as data.validation",
    "val_set_size": "data.validation_fraction",
    "num_classes num_labels": "the data decides; task.labels fixes the order",
    "batch_size train_batch_size per_device_train_batch_size": (
        "batch.examples is the number of examples in an update, on all devices together"
    ),
    "gradient_accumulation_steps accumulate_grad_batches": "batch.virtual_workers computes batch.examples in N passes",
    "task task_name criterion": "task.kind chooses the task, and with it the loss",
    "use_early_stopping": "evaluation.patience sets the number of evaluations without an improvement",
    "load_best_model_at_end": "leave it out: the best checkpoint is always kept",
    "eval_strategy evaluation_strategy": "a run evaluates once per epoch, or every evaluation.every_steps",
    "metric_for_best_model early_stopping_metric": "evaluation.metric",
    "label_smoothing_factor": "optimizer.label_smoothing",
}
"""Keys that are elsewhere in fine-tuning."""
_OPTIONS = {
    "output_dir save_dir logdir job_dir default_root_dir save_folder": "--run --to",
    "out output output_file": "--to",
    "train_file test_file predict_file eval_file input_file data": "--input",
    "lr lrate learning_rate peak_lr": "--learning-rates",
    "seed random_seed manual_seed": "--search-seed",
    "max_seq_length max_length": "--max-seq-len --seq-len",
    "text_column_name": "--text-column",
    "num_proc num_workers preprocessing_num_workers": "--workers",
    "top_k": "--top",
    "push_to_hub hub_model_id": "--push",
    "nproc_per_node gpus num_gpus distributed_world_size": "--processes",
    "nnodes num_machines": "--num-nodes",
    "machine_rank": "--node-rank",
    "rdzv_endpoint": "--rendezvous",
    "tokenizer_name": "--tokenizer",
    "on": "--task",
    "processes_at_once": "--workers",
    "from": "--from-format",
    "working_dir": "--workdir",
    "work": "--to",
}
"""Their names -> an option, the first of these that a command has."""
_DECOUPLED = "give adamw, and divide weight_decay by learning_rate, by which that optimizer does not multiply it"
_NO_KIND = "schedule.kind is linear, cosine, wsd, constant, polynomial or inverse_sqrt; there is nothing like this one"
VALUES = {
    "schedule.kind": {
        "polynomial_decay": "linear",  # fairseq's power is 1 unless --power says otherwise
        **dict.fromkeys(
            ("constant_with_warmup", "warmupconstant", "constant_schedule_with_warmup", "fixed"), "constant"
        ),
        **dict.fromkeys(("warmuplinear", "linear_schedule_with_warmup", "linear_decay_with_warmup"), "linear"),
        **dict.fromkeys(("warmupcosine", "cosine_schedule_with_warmup", "cosine_with_warmup"), "cosine"),
        "polynomial_decay_schedule_with_warmup": "polynomial",
        "warmup_stable_decay": "wsd",
        **dict.fromkeys(
            ("cosine_with_restarts", "reduce_lr_on_plateau", "tri_stage", "triangular", "onecycle"), _NO_KIND
        ),
    },
    "data.packing": {
        "complete": "full_sentences",
        "none": "full_sentences",
        "complete_doc": "documents",
        "eos": "documents",
    },
    "optimizer.kind": {
        **dict.fromkeys(("adam", "adamw_hf", "adamw_anyprecision", "paged_adamw_32bit"), "adamw"),
        **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_apex_fused"), "adamw"),
        "fused_adam": "adamw",
        **dict.fromkeys(("decoupled_adamw", "decoupledadamw", "decoupled_stableadamw"), _DECOUPLED),
    },
    "optimizer.max_grad_norm": dict.fromkeys(("0", "0.0", "none"), "null"),
    "schedule.steps": dict.fromkeys(("-1", "0"), "leave it out: schedule.epochs sets the length of the run"),
    "engine.dtype": {
        **dict.fromkeys(("16", "16-mixed"), "auto"),  # bf16 if the hardware has it, else fp16 on a GPU
        **dict.fromkeys(("float16", "half", "amp_fp16"), "fp16"),
        **dict.fromkeys(("bfloat16", "bf16-mixed", "bf16-true", "amp_bf16"), "bf16"),
        **dict.fromkeys(("32", "32-true", "float32", "no"), "fp32"),
    },
    "model.architecture": {"xlmr": "xlm-roberta", "xlm_roberta": "xlm-roberta"},
    "model.init_from": {short: f"hf://{owner}/{short}" for short, owner in OWNERS.items()},
    "evaluation.metric": {
        "f1": "f1_macro",
        "matthews_correlation": "matthews_corrcoef",
        **{f"eval_{name}": name for name in ("accuracy", "loss", "f1_macro")},
        "eval_f1": "f1_macro",
    },
    "logging.report_to": {"none": "[]", "all": "[tensorboard]", "false": "[]", "true": "[tensorboard]"},
    "evaluation.every_steps": dict.fromkeys(("epoch", "steps"), "evaluation.every_steps is a number of steps"),
}
"""Other trainers' values of a key, in small letters -> ours, or a sentence."""
_RECIPES = "`maskwright recipes` lists configurations to begin with, and `maskwright recipes small` prints one"
_COMMANDS = {
    "preprocess preprocess_data tokenize tokenise encode binarize prepare prepare_data": (
        "`maskwright data prepare TEXT --tokenizer FOLDER --to STORE`"
    ),
    "drill": "`maskwright verify-resume CONFIG` proves that a killed run continues bit for bit",
    "speedrun": "`python benchmarks/speedrun`, in a checkout of the repository",
    "resume continue restart": "the command that started the run, with the same --run, continues it",
    "train pre_train pretraining fit run_mlm": (
        "`maskwright pretrain CONFIG --run RUN` trains on a store, `maskwright finetune CONFIG --run RUN` on labels"
    ),
    "fine_tune finetuning fine_tuning tune sft run_glue classify": "`maskwright finetune CONFIG --run RUN`",
    "inference infer generate run_inference unmask fill_mask": (
        "`maskwright fill MODEL TEXT` fills masks, `maskwright predict MODEL --input FILE` writes labels, and "
        "`maskwright embed MODEL --input FILE` writes vectors"
    ),
    "eval validate test score perplexity": "`maskwright evaluate MODEL`; --help lists what it measures",
    "push upload publish push_to_hub save save_pretrained": (
        "`maskwright export RUN --to FOLDER --push OWNER/NAME` proves the model and uploads it"
    ),
    "serve deploy api chat": (
        "unsupported: `maskwright export RUN --to FOLDER` writes a folder that transformers and servers load"
    ),
    "recipe init config configs examples new template fetch": _RECIPES,
    "download pull get": "`maskwright data pull URL --to FOLDER` for data; give a model as hf://OWNER/NAME",
    "launch run start submit_job sbatch ray slurm vertex kubernetes": (
        "`maskwright submit PLACE CONFIG --run RUN`; `maskwright submit --help` lists the places"
    ),
    "train_tokenizer tokenizers": "`maskwright tokenizer train TEXT --to FOLDER`",
    "convert convert_checkpoint": (
        "`maskwright data convert` for token files, `maskwright export` for models, `maskwright import` for commands"
    ),
    "cancel kill abort": "`maskwright stop RUN`",
    "ps ls jobs list": "`maskwright status RUN`; `maskwright status ray:` or `kubernetes:` lists the jobs of a cluster",
    "text audit": "`maskwright data audit TEXT`",
    "forward": "`maskwright sync RUN --to SERVICE`",
    "version": "`maskwright --version`",
    "help": "`maskwright --help`, and `maskwright COMMAND --help`",
}
"""Other programs' names of commands -> what to type."""

_MOVED = {
    "env plan": "`maskwright env up ENV.yaml --dry-run`",
    "image build": "`maskwright image IMAGE`",
    "env up --detailed_exitcode": "`--json`, whose `differs` shows it",
    "recipes show": "`maskwright recipes NAME`",
    "submit slurm --env": "leave it out: sbatch passes your environment on; `export NAME=…` before you submit",
    "submit kubernetes --node_selector": "`--job-template FILE`, a YAML whose spec.template.spec.nodeSelector has it",
    "submit kubernetes --service_account": (
        "`--job-template FILE`, a YAML whose spec.template.spec.serviceAccountName has it"
    ),
}
"""Spellings of several words -> what to type."""
COMMANDS = _MOVED | {name: said for names, said in _COMMANDS.items() for name in names.split()}
NOT_NEEDED = {name: why for names, why in NOT_NEEDED.items() for name in names.split()}
_LEFT_OUT = {name: f"leave it out: {why}" for name, why in NOT_NEEDED.items()}
FINETUNING = _LEFT_OUT | {name: said for names, said in (_BOTH | _FINETUNING).items() for name in names.split()}
FOREIGN = _LEFT_OUT | {name: said for names, said in (_BOTH | _KEYS).items() for name in names.split()}
OPTIONS = {name: options.split() for names, options in _OPTIONS.items() for name in names.split()}
