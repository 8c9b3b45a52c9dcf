"""Commands of other trainers, as people type them, and the runs that they become."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from fairseq_files import write_fairseq

from maskwright.config.finetuning import build_finetune_config, read_finetune_config
from maskwright.config.pretraining import build_config
from maskwright.core.errors import InputError
from maskwright.data.convert import Conversion, ConvertOptions, convert
from maskwright.tasks.importing import imported
from maskwright.tasks.importing.taken import table
from maskwright.text.vocabulary import read_vocabulary, token_ids

RUNME = r"""#!/bin/bash
source /tmp/values.env
export TOTAL=1500000 cores=8 log=/tmp/"$(date +%F) run.txt"
arch=roberta_large pod=${ENV_BUILD_NAME}-tpu
shards="$MOUNT_POINT/shared_pd"  # where the disk is
DATABIN=$(seq 0 0 | xargs -I{} echo $shards/shard{} | tr "\n" ":")
# python train.py this line is a comment
python -m torch_xla.distributed.xla_dist --tpu=$pod --env XLA_USE_BF16=1 -- python $MOUNT_POINT/fairseq/train.py \
  $DATABIN --task multilingual_masked_lm --arch $arch --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-6 \
  --clip-norm 1.0 --lr-scheduler polynomial_decay --lr 0.0004 --warmup-updates 15000 --total-num-update ${TOTAL} \
  --max-update $TOTAL --dropout 0.1 --weight-decay 0.01 --input_shapes 2x512 \
  --update-freq `expr 4096 / $cores` --train-subset=train --valid-subset=valid \
  --sample-break-mode complete --tokens-per-sample 512 --multilang-sampling-alpha 0.7 --save-interval-updates 3000 \
  --save-dir $MOUNT_POINT/checkpoints-$ENV_BUILD_NAME --num_cores=8 --suppress_loss_report &> $log
"""


def taken(script, command, devices=None, **variables):
    found, text = imported(script, command, devices, **variables)
    return found, yaml.safe_load(text)


def fates(found):
    return {row.flag: row.fate for row in found.rows}


def test_fairseqs_script_is_read_and_its_batch_worked_out(tmp_path):
    (tmp_path / "runme.sh").write_text(RUNME)
    (tmp_path / "values.env").write_text('MOUNT_POINT="/mnt" # ours\nENV_BUILD_NAME=1\n')
    told = "uses $MOUNT_POINT and $ENV_BUILD_NAME and $DATABIN, whose values need a shell. Fix: give --var MOUNT"
    with pytest.raises(InputError, match=re.escape(told)):
        taken("fairseq", str(tmp_path / "runme.sh"), 32)
    given = {"files": [str(tmp_path / "values.env")], "assignments": ["DATABIN=/mnt/shared_pd/shard0:"]}
    found, values = taken("fairseq", str(tmp_path / "runme.sh"), 32, **given)
    assert values["batch"] == {"micro_batch_rows": 2, "virtual_workers": 16_384}
    assert "32,768 rows of 512 tokens in an update" in table(found.rows)
    assert values["schedule"] == {"warmup_steps": 15_000, "steps": 1_500_000, "kind": "linear"}
    optimizer = {"learning_rate": 4e-4, "beta1": 0.9, "beta2": 0.98, "eps": 1e-6, "weight_decay": 0.01}
    assert values["optimizer"] == optimizer | {"max_grad_norm": 1.0}
    assert (values["model"]["hidden_dropout"], values["model"]["attention_dropout"]) == (0.1, 0.1)
    assert values["model"]["size"] == "large" and values["data"]["packing"] == "full_sentences"
    assert values["engine"]["kind"] == "jax" and values["checkpoint"]["save_every_steps"] == 3000
    assert found.run == "/mnt/checkpoints-1" and "--tpu=1-tpu" in found.typed.original
    assert "unknown" not in fates(found).values()
    assert found.commands("x")[0] == (
        "maskwright data convert /mnt/shared_pd/shard0 --tokenizer hf://FacebookAI/roberta-base --to data/store"
    )
    (tmp_path / "values.env").write_text('MOUNT_POINT=/mnt\nENV_BUILD_NAME=1\nTPU_ACCELERATOR_TYPE="v3-32"\n')
    alone, same = taken("fairseq", str(tmp_path / "runme.sh"), **given)  # the variables say how many cores
    assert same == values and "32 devices, by TPU_ACCELERATOR_TYPE" in table(alone.rows)
    assert alone.on_tpu("x.yaml") == [
        "maskwright plan x.yaml --on v3:4x4",
        "maskwright data push data/store --to gs://BUCKET/store",
        "maskwright submit slice 1-tpu x.yaml --run /mnt/checkpoints-1 --set data.store=gs://BUCKET/store",
    ]
    (tmp_path / "values.env").write_text("MOUNT_POINT=/mnt\nENV_BUILD_NAME=1\n")
    found, _ = taken("fairseq", str(tmp_path / "runme.sh"), **given)
    assert "xla_dist starts it on each host of the slice: give --devices" in table(found.rows)
    assert fates(found)["--devices"] == "left out"


def test_languages_of_fairseqs_shards_are_stores_that_alpha_weighs(tmp_path, tokenizer):
    """Their folders lie in each shard, beside the dictionary of all."""
    pieces = sorted(set(token_ids(str(tokenizer)).values()) - read_vocabulary(str(tokenizer)).special)
    for shard in ("shard0", "shard1"):
        write_fairseq(tmp_path / shard, [[np.array(pieces[:20])]] * 4, str(tokenizer))
        for language in ("de", "en"):
            (tmp_path / shard / language).mkdir()
            for ending in ("bin", "idx"):
                shutil.copy(tmp_path / shard / f"train.{ending}", tmp_path / shard / language)
        for ending in ("bin", "idx"):
            (tmp_path / shard / f"train.{ending}").unlink()
    command = f"fairseq-train {tmp_path}/shard0:{tmp_path}/shard1: --task multilingual_masked_lm --max-update 9"
    found, values = taken("fairseq", f"{command} --arch xlmr_base --multilang-sampling-alpha 0.7")
    assert values["data"]["mixture"] == {"de": "data/store-de", "en": "data/store-en"}
    assert values["data"]["mixture_alpha"] == 0.7 and fates(found)["--multilang-sampling-alpha"] == "mapped"
    words = shlex.split(found.commands("x")[1])
    assert words[3] == f"{tmp_path}/shard0/en:{tmp_path}/shard1/en" and words[-1] == "data/store-en"
    conversion = Conversion([words[3]], str(tokenizer), str(tmp_path / "store"), ConvertOptions(valid_fraction=0))
    assert convert(conversion).manifest["splits"]["train"]["documents"] == 8


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        ("--task translation --criterion label_smoothed_cross_entropy --arch transformer_iwslt_de_en", "use the"),
        ("--task sentence_prediction --arch roberta_base", "for labels, run `maskwright finetune`"),
        ("--task masked_lm --criterion cross_entropy --arch roberta_base", "use the"),
        ("--task masked_lm --criterion masked_lm --arch bert_base", "use the"),
        ("--arch transformer", "use the"),
    ],
)
def test_what_fairseq_trains_besides_masked_tokens_is_refused(flags, fix):
    with pytest.raises(InputError, match=rf"^--(task|criterion|arch): .* masked tokens alone. Fix: {fix}"):
        taken("fairseq", f"fairseq-train d --max-update 9 {flags}")


def test_run_glue_becomes_a_fine_tuning(tmp_path):
    train = tmp_path / "train.csv"
    train.write_text("id,sentence1,sentence2,label\n1,a,b,0\n2,c,d,1\n")
    found, values = taken(
        "run_glue",
        f"accelerate launch --num_processes 2 run_glue.py --model_name_or_path {tmp_path} --train_file {train} "
        "--per_device_train_batch_size 16 --warmup_ratio 0.1 --metric_for_best_model eval_accuracy "
        "--load_best_model_at_end --output_dir out",
    )
    assert values["batch"] == {"examples": 32, "virtual_workers": 2}
    assert [values["data"][name] for name in ("text", "text_pair", "label")] == ["sentence1", "sentence2", "label"]
    assert values["schedule"]["warmup_share"] == 0.1 and values["evaluation"]["metric"] == "accuracy"
    assert found.commands("f.yaml")[0] == "maskwright finetune f.yaml --run out"
    _, text = imported("run_glue", "python run_glue.py --task_name stsb --model_name_or_path bert-base-cased")
    (tmp_path / "f.yaml").write_text(text)
    config = read_finetune_config(str(tmp_path / "f.yaml"))
    assert config.task.kind == "regression" and config.data.train == "glue/STS-B/train.tsv"


def test_the_trainer_of_pregenerated_epochs(tmp_path):
    found, values = taken(
        "tpu_pretrain",
        "python -m pretrain --pregenerated_data d --bert_model roberta-base --train_batch_size 24 --output_dir o_bert "
        "--warmup_steps 100 --reduce_memory",
    )
    assert values["data"] == {"store": "d", "format": "pregenerated", "seq_len": 512}
    assert values["batch"] == {"micro_batch_rows": 24, "virtual_workers": 8} and values["engine"]["kind"] == "jax"
    assert values["model"]["init_from"] == "hf://FacebookAI/roberta-base"
    assert found.on_tpu("x.yaml") == [
        "maskwright data convert d --tokenizer hf://FacebookAI/roberta-base --to store --special-tokens remove "
        "--valid-fraction 0",
        "maskwright data push store --to gs://BUCKET/store",
        "maskwright submit kubernetes x.yaml --run o_bert --env-file ENV.yaml --target slice "
        "--set data.store=gs://BUCKET/store --set data.format=store",
    ]
    assert values["schedule"] == {"epochs": 3.0, "kind": "linear", "warmup_steps": 100}
    assert fates(found)["--reduce_memory"] == "not needed"
    for epoch, length in enumerate((96, 128)):  # where the folder is here, it says how long its examples are
        metrics = f'{{"num_training_examples": 3, "max_seq_len": {length}}}'
        (tmp_path / f"epoch_{epoch}_metrics.json").write_text(metrics)
    found, values = taken("tpu_pretrain", f"pretrain.py --pregenerated_data {tmp_path}")
    assert values["data"]["seq_len"] == 128 and "epoch_*_metrics.json" in table(found.rows)
    assert values["masking"] == {"rate": 0.15, "kind": "token"}  # the script's own, which its files do not tell
    assert "masking.rate: 0.15 (set it to the value that made the examples)" in table(found.rows)
    command = (
        "python pregenerate_training_data.py --train_corpus 'text/*.txt' --bert_model roberta-base --output_dir d "
    )
    found, values = taken("tpu_pretrain", f"{command} --max_seq_len 256 --do_whole_word_mask --short_seq_prob 0.2")
    prepare = "maskwright data prepare 'text/*.txt' --tokenizer hf://FacebookAI/roberta-base --to d --layout sentences"
    assert found.commands("x.yaml")[:2] == [prepare, "maskwright pretrain x.yaml --run runs/imported"]
    assert values["data"] == {"store": "d", "seq_len": 256}
    assert values["masking"] == {"rate": 0.15, "kind": "whole_word"} and values["schedule"] == {"epochs": 3.0}
    assert fates(found)["--short_seq_prob"] == "left out" and not found.on_tpu("x.yaml")


def test_a_token_in_the_command_goes_nowhere():
    command = "HF_TOKEN=hf_one run_mlm.py --train_file a.txt --hub_token hf_two --token=hf_three --mystery 3"
    found, text = imported("run_mlm", command)
    assert "hf_" not in text + table(found.rows) and "--hub_token" in text
    assert fates(found)["--mystery"] == "unknown" and "unsupported" in table(found.rows)


NO_DECAY = "--lr_scheduler_type warmup_stable_decay --optim galore_adamw --max_steps 9"
WIKITEXT = "--dataset_name wikitext --dataset_config_name wikitext-2-raw-v1"
OF_TWO_LABELS = "run_glue.py --task_name cola --model_name_or_path m --load_best_model_at_end"
TAKES = [
    # How a shell reads it.
    ("run_mlm", "N=4; run_mlm.py --per_device_train_batch_size `expr 128 / $N`", {"batch.micro_batch_rows": 32}, ()),
    ("run_mlm", "E=; run_mlm.py $E --output_dir a$E-b --seed 7", {"seed": 7}, ()),
    ("run_mlm", "S=7; python run_mlm.py --max_steps 9 --seed $S> log", {"seed": 7}, ()),
    ("run_mlm", "cd /x && python run_mlm.py --model_name_or_path m 2>&1| tee log", {"model.init_from": "m"}, ()),
    ("run_mlm", "python run_mlm.py --model_name_or_path m >log 2>err; echo done", {"model.init_from": "m"}, ()),
    ("run_mlm", "python run_mlm.py --seed 7 > \"my log\"/$X 2>&1 < 'in it'", {"seed": 7}, ()),
    ("run_mlm", 'python run_mlm.py >> $"a b" --seed 7 &> x', {"seed": 7}, ()),
    ("run_mlm", 'A="--bf16 --max_steps 7"; python run_mlm.py $A', {"engine.dtype": "bf16", "schedule.steps": 7}, ()),
    ("run_mlm", "python run_mlm.py --seed 7 \\", {"seed": 7}, ()),
    ("run_mlm", "python run_mlm.py --seed 7 \\\n", {"seed": 7}, ()),
    ("run_mlm", "wget https://x/run_mlm.py; chmod +x run_mlm.py; run_mlm.py --seed 7", {"seed": 7}, ()),
    ("run_mlm", "C='python run_mlm.py'; echo \"run: $C\"; $C --seed 7", {"seed": 7}, ()),
    ("run_mlm", 'run_mlm.py --cache_dir $SCRATCH/hf --run_name "run $1" --max_steps 7', {"schedule.steps": 7}, ()),
    # On how many devices.
    ("run_mlm", "torchrun --nproc_per_node 2 --master_port $(shuf -n 1) run_mlm.py", {"batch.virtual_workers": 2}, ()),
    ("run_mlm", "xla_spawn.py --num_cores 8 run_mlm.py", {"batch.virtual_workers": 8, "engine.kind": "jax"}, ()),
    *(
        ("run_mlm", f"{launcher} run_mlm.py --train_file a.txt", {}, ("--devices: left out", "several times"))
        for launcher in (
            "srun -n 4 python", "deepspeed", "torchrun --nproc_per_node 2 --nnodes $N",
            "CUDA_VISIBLE_DEVICES=0,1 accelerate launch",
        )
    ),
    *((script, f"{start} --train_file a.txt", {}, (said,)) for script, start, said in (
        ("run_mlm", "python run_mlm.py", "1 device, by this command alone (it takes all GPUs: give --devices)"),
        ("run_glue", "python run_glue.py", "1 device, by this command alone (it takes all GPUs: give --devices)"),
        ("run_mlm", "python run_mlm_no_trainer.py", "1 accumulated x 1 device)"),
        ("run_mlm", "CUDA_VISIBLE_DEVICES=3 python run_mlm.py", "1 device, by CUDA_VISIBLE_DEVICES"),
        ("run_mlm", "export CUDA_VISIBLE_DEVICES=3; python run_mlm.py", "1 device, by CUDA_VISIBLE_DEVICES"),
        ("run_mlm", "export CUDA_VISIBLE_DEVICES=0,3; python run_mlm.py", "2 devices, by CUDA_VISIBLE_DEVICES"),
        ("run_mlm", "CUDA_VISIBLE_DEVICES=0,3 python run_mlm.py --no_cuda --fp16", "dtype: fp32 (fp16 is for GPUs"),
        ("run_mlm", "CUDA_VISIBLE_DEVICES=0,3 python run_mlm_no_trainer.py", "1 accumulated x 1 device, by CUDA"),
    )),
    ("run_glue", "python $XLA run_classification.py --train_file a.csv", {}, ("$XLA may start it several times",)),
    # What each flag becomes, and what is said where nothing is the same.
    ("run_mlm", "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 --nnodes=2 examples/run_mlm.py "
     "--model_name_or_path FacebookAI/roberta-base --model_revision abc --train_file 'my corpus.txt' --line_by_line "
     "--per_device_train_batch_size=16 --gradient_accumulation_steps 4 --max_steps 1000 --warmup_ratio 0.06 "
     "--bf16 True --weight_decay 0.01 --adam_beta2 0.98 --save_total_limit 3 --eval_strategy steps --eval_steps 50 "
     "--report_to wandb tensorboard --output_dir out",
     {"batch.micro_batch_rows": 16, "batch.virtual_workers": 16, "schedule.steps": 1000, "schedule.kind": "linear",
      "schedule.warmup_share": 0.06, "optimizer.learning_rate": 5e-5, "optimizer.beta1": 0.9, "optimizer.beta2": 0.98,
      "optimizer.eps": 1e-8, "optimizer.weight_decay": 0.01, "optimizer.max_grad_norm": 1.0, "engine.dtype": "bf16",
      "model.init_from": "hf://FacebookAI/roberta-base@abc", "model.hidden_dropout": 0.1, "evaluation.every_steps": 50,
      "checkpoint.save_every_steps": 500, "checkpoint.keep": 3, "logging.report_to": ["tensorboard", "wandb"]},
     ("maskwright data prepare 'my corpus.txt' --tokenizer hf://FacebookAI/roberta-base@abc --to data/store "
      "--layout lines --valid-fraction 0.05", "maskwright pretrain run.yaml --run out",
      "maskwright export out --to out-hf", "--report_to: mapped")),
    ("run_mlm", "run_mlm.py --lr_scheduler_type cosine", {"schedule.kind": "cosine", "schedule.epochs": 3.0}, ()),
    ("run_mlm", "run_mlm.py --lr_scheduler_type constant_with_warmup", {"schedule.kind": "constant"}, ()),
    ("run_mlm", "run_mlm.py --lr_scheduler_type polynomial --lr_scheduler_kwargs '{\"power\": 2.0}'",
     {"schedule.kind": "polynomial", "schedule.power": 2.0, "schedule.final_lr_share": 1e-7 / 5e-5}, ()),
    ("run_mlm", "python run_mlm.py --fp16 False --learning_rate 2e-4", {"engine.dtype": "fp32"}, ()),
    ("run_mlm", "python run_mlm.py --max_steps 1000 --logging_steps 0.01", {"logging.every_steps": 10},
     ("not given, so the script would not train",)),
    ("run_mlm", "python run_mlm.py --do_train --max_steps 100 --logging_steps 200 --fp16", {"logging.every_steps": 200},
     ("more than the run's 100 steps, so only at its end", "on a CPU set engine.dtype: auto")),
    ("run_mlm", "run_mlm.py --warmup_steps -1 --warmup_proportion 0.1", {"schedule.warmup_share": 0.1}, ()),
    ("run_mlm", "run_mlm.py --label_smoothing_factor 0.0 --seed 7", {"seed": 7}, ()),
    ("run_mlm", "run_mlm_no_trainer.py --max_train_steps 9 --num_warmup_steps 2", {"schedule.warmup_steps": 2}, ()),
    ("run_mlm", "run_mlm_no_trainer.py --max_train_steps 9", {"optimizer.max_grad_norm": None}, ()),
    ("run_glue", "run_glue_no_trainer.py --train_file a.csv", {"optimizer.max_grad_norm": None}, ()),
    ("run_mlm", "run_mlm_wwm.py --train_ref_file r --train_file t", {"masking.kind": "whole_word"}, ()),
    ("run_mlm", "run_language_modeling.py --mlm --train_data_file t --block_size 99 --evaluate_during_training",
     {"data.seq_len": 99, "evaluation.every_steps": 500}, ()),
    ("run_mlm", "run_mlm.py --train_file a.txt --line_by_line", {}, (
        "lines share rows, so an epoch has fewer updates", "replaced by model.architecture: roberta")),
    ("run_mlm", f"torchrun --nproc_per_node gpu run_mlm.py {NO_DECAY} "
     """--lr_scheduler_kwargs '{"num_decay_steps": 3, "min_lr_ratio": 0.1, "decay_type": "linear"}'""",
     {"schedule.final_lr_share": 0.1}, ("left out: decay_type", "--optim: left out", "--devices: left out")),
    ("run_glue", "run_glue.py --train_file a.csv --text_column_name t --label_column_name y --metric_name f1 "
     "--shuffle_train_dataset --model_type bert", {"data.text": "t", "evaluation.metric": "f1_macro"}, ()),
    # Models from scratch, of a folder, and of the Hub.
    ("run_mlm", "python run_mlm.py --model_type bert --tokenizer_name google-bert/bert-base-cased --train_file a.txt "
     "--config_overrides hidden_size=128,num_hidden_layers=2,num_attention_heads=2,foo=1 --fp16 --max_grad_norm 0",
     {"model.architecture": "bert", "model.hidden_size": 128, "model.num_hidden_layers": 2,
      "model.num_attention_heads": 2, "model.intermediate_size": 3072, "engine.dtype": "fp16",
      "optimizer.max_grad_norm": None, "optimizer.learning_rate": 5e-5, "optimizer.beta1": 0.9,
      "optimizer.beta2": 0.999, "optimizer.eps": 1e-8, "optimizer.weight_decay": 0.0}, ()),
    ("run_mlm", "python run_mlm.py --model_type modernbert --train_file a.txt",
     {"model.num_hidden_layers": 22, "model.hidden_dropout": 0.0}, ()),
    *(
        ("run_mlm", f"run_mlm.py --train_file a.txt --model_name_or_path {given}", {"model.init_from": taken_from}, ())
        for given, taken_from in {
            "out/b/epoch5640/": "out/b/epoch5640/", "out/b/c": "out/b/c", "models/base": "models/base",
            "a/base --model_revision r1": "hf://a/base@r1",
        }.items()
    ),
    # Where the text is.
    ("run_mlm", "run_mlm.py --train_file a.txt --model_name_or_path m --tokenizer_name b/base", {},
     ("--tokenizer hf://b/base",)),
    ("run_mlm", "run_mlm.py --dataset_name ./mine", {}, ("maskwright data prepare './mine/train-*.parquet'",)),
    ("run_mlm", "run_mlm.py --dataset_name a/b --dataset_config_name c", {},
     ("--repo-type dataset", "maskwright data prepare 'data/b/c/train-*.parquet'", "--valid-fraction 0.05")),
    ("run_mlm", f"run_mlm.py {WIKITEXT}", {},
     ("--repo-type dataset", "--valid-files 'data/wikitext/wikitext-2-raw-v1/validation-*.parquet'")),
    *(
        ("run_glue", f"run_glue.py --task_name {task} --model_name_or_path m",
         {"data.train": train, "data.label": label}, ("--task_name: mapped",))
        for task, train, label in (
            ("SST-2", "glue/SST-2/train.tsv", "label"),
            ("STS-B --data_dir /glue/STS-B/", "/glue/STS-B/train.tsv", "score"),
            ("CoLA --data_dir mine", "mine/train.tsv", 1),
        )
    ),
    # What the best checkpoint is judged by.
    *(
        ("run_glue", f"{OF_TWO_LABELS} {flags}", {"evaluation.metric": metric}, ())
        for flags, metric in (
            ("", "loss"),  # the Trainer's default
            ("--metric_for_best_model eval_loss", "loss"),
            ("--metric_for_best_model f1", "f1"),  # of two labels, as GLUE's
            ("False", "matthews_corrcoef"),  # of the task
            ("--metric_for_best_model rouge", "matthews_corrcoef"),
        )
    ),
    # fairseq
    ("fairseq", "fairseq-train d --patience 9 --max-update 9", {"evaluation.patience": None},
     ("--patience: left out",)),
    ("fairseq", "fairseq-train d --patience 9 --validate-interval-updates 5 --max-update 9",
     {"evaluation.every_steps": 5, "evaluation.patience": 9}, ()),
    ("fairseq", "fairseq-train d --save-dir out --restore-file out/checkpoint7.pt --wandb-project p "
     "--keep-last-epochs 3 --save-interval 9 --mask-stdev 10 --max-update 9",
     {"logging.report_to": ["wandb"]}, ("--restore-file: not needed", "--mask-stdev: left out")),
    ("fairseq", "fairseq-train d --restore-file xlmr.base/model.pt --max-update 9", {"model.init_from": None},
     ("--restore-file: left out", "maskwright import weights xlmr.base/model.pt --to FOLDER")),
    ("fairseq", "fairseq-train --fp16 data-bin --lr 1e-3 --update-freq 4,2 --max-update 9", {"engine.dtype": "fp16"},
     ("maskwright data convert data-bin", "the values of later epochs are left out")),
    ("fairseq", "fairseq-train a:b --max-tokens 4096 --max-update 10 --multilang-sampling-alpha 0.7 "
     "--freq-weighted-replacement --encoder-layerdrop 0.1 --activation-dropout 0.1 --user-dir x",
     {"data.mixture": None, "data.mixture_alpha": None, "data.store": "data/store", "batch.micro_batch_rows": 8},
     ("data convert a:b ", "--freq-weighted-replacement: left out", "--encoder-layerdrop: left out",
      "--activation-dropout: left out", "--user-dir: left out", "--multilang-sampling-alpha: left out")),
    # Flags that the scripts have, one letter from others that they or another program have.
    ("fairseq", "fairseq-train d --nprocs-per-node 4 --profile", {}, ("--nprocs-per-node: left out",)),
    ("run_mlm", "run_language_modeling.py --mlm --train_data_files 'a/*' --plm_probability 0.2 --model_type bert", {},
     ("--plm_probability: not needed", "data prepare 'a/*'")),
    # Both limits of fairseq's batches count, which it cuts to a multiple of 8.
    *(
        ("fairseq", f"fairseq-train d --max-update 9 {flags}", {"batch.micro_batch_rows": rows}, (said,))
        for flags, rows, said in (
            ("--batch-size 32 --max-tokens 8192", 16, "--batch-size: not needed"),
            ("--batch-size 4 --max-tokens 8192", 4, "--max-tokens: not needed"),
            ("--batch-size 12", 8, "not 12: --required-batch-size-multiple is 8"),
            ("--max-tokens 6144 --required-batch-size-multiple 1", 12, "--required-batch-size-multiple: mapped"),
        )
    ),
    # A run that fairseq ends before or after the decay of its learning rate.
    *(
        ("fairseq", f"fairseq-train d --lr 1e-3 --lr-scheduler polynomial_decay --max-update 50 {flags}",
         {"schedule.steps": 50, "schedule.final_lr_share": share}, (f"--total-num-update: {said}",))
        for flags, share, said in (
            ("--total-num-update 100 --warmup-updates 10 --end-learning-rate 1e-4", 0.1 + 0.9 * 50 / 90, "mapped"),
            ("--total-num-update 40", None, "left out"),
            ("--total-num-update 100 --power 2", None, "left out"),
        )
    ),
    # Epochs that were generated before, on TPUs and on GPUs.
    ("tpu_pretrain", "pretrain.py --epochs 4 --warmup_proportion 0.06 --one_tpu --seed 7",
     {"schedule.epochs": 4.0, "schedule.kind": "linear", "schedule.warmup_share": 0.06, "batch.virtual_workers": 1,
      "seed": 7}, ()),
    ("tpu_pretrain", "python pretrain.py --pregenerated_data d --tpu_ip $IP --bert_model m", {"optimizer.beta2": 0.98},
     ("--tpu_ip: not needed",)),
    ("tpu_pretrain", "finetune_on_pregenerated.py --pregenerated_data d --bert_model bert-base-cased --do_lower_case "
     "--epochs 2 --train_batch_size 32 --gradient_accumulation_steps 4 --fp16",
     {"batch.micro_batch_rows": 8, "batch.virtual_workers": 4, "engine.dtype": "fp16", "engine.kind": None,
      "optimizer.beta2": 0.999}, ("--is_next: left out",)),
    ("tpu_pretrain", "export CUDA_VISIBLE_DEVICES=0,1; finetune_on_pregenerated.py --train_batch_size 32",
     {"batch.micro_batch_rows": 16, "batch.virtual_workers": 2}, ()),
    # One script that generates the epochs, and trains on them: or on others.
    *(("tpu_pretrain", f"O=made/; pregenerate_training_data.py --train_corpus t --output_dir $O --max_seq_len 99; "
       f"python finetune_on_pregenerated.py --pregenerated_data {folder} --epochs 4 --fp16 --no_cuda",
       {"data.store": folder, "data.format": format_, "data.seq_len": length, "schedule.epochs": 4.0,
        "engine.device": "cpu", "engine.dtype": "fp32"}, said) for folder, format_, length, said in (
        ("made", None, 99, ("data prepare t --tokenizer hf://FacebookAI/roberta-base --to made/ --layout sentences",)),
        ("other", "pregenerated", 512, ("training_data.py writes made/, and the training reads other: import",)),
    )),
]  # fmt: skip
"""A script, a command, some of the values that it becomes (None: there is no such key), and words of the table of its
flags or of the commands to type."""


@pytest.mark.parametrize(("script", "command", "values", "said"), TAKES)
def test_what_is_taken_over_and_what_is_said(script, command, values, said):
    found, text = imported(script, command)
    build = build_finetune_config if script == "run_glue" else build_config
    build(yaml.safe_load(text), "the YAML is one that a run takes")
    assert {key: found.values.get(key) for key in values} == values
    fated = [f"{flag}: {fate}" for flag, fate in fates(found).items()]
    told = "\n".join([table(found.rows), *found.commands("run.yaml"), *fated])
    assert [words for words in said if words not in told] == [] and "unknown" not in fates(found).values()
    assert ("--repo-type dataset" in told) is ("--repo-type dataset" in said)


def test_a_script_of_several_starts_and_a_file_of_arguments(tmp_path):
    (tmp_path / "two.sh").write_text("python run_mlm.py --max_seq_length 128\npython run_mlm.py --max_seq_length 512\n")
    found, values = taken("run_mlm", str(tmp_path / "two.sh"))
    assert values["data"]["seq_len"] == 128 and "starts it 1 more time" in table(found.rows)
    _, values = taken("run_mlm", "srun -n 4 python run_mlm.py --train_file a.txt", 4)
    assert values["batch"]["virtual_workers"] == 4
    with pytest.raises(InputError, match="--devices: is 8, but the command starts it on 2 devices. Fix: leave it out"):
        imported("run_mlm", "torchrun --nproc_per_node 2 run_mlm.py --do_train --train_file a.txt", 8)
    given = {"train_file": "a.txt", "dataset_name": None, "hub_token": "hf_one", "max_steps": 3}
    (tmp_path / "a.json").write_text(json.dumps(given))
    found, values = taken("run_mlm", f"run_mlm.py {tmp_path}/a.json")
    assert values["schedule"]["steps"] == 3 and "None" not in table(found.rows) and "hf_one" not in table(found.rows)
    with pytest.raises(InputError, match="no such file"):
        imported("run_mlm", "run_mlm.py missing.json")


@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("run_mlm", "run_mlm.py --model_name_or_path {0}/a --train_file {0} --validation_file {0} --max_steps 5"),
        ("run_mlm", "run_mlm.py --dataset_name {0} --tokenizer_name {0}/b --model_revision {0} --config_name {0}"),
        ("run_glue", "run_glue.py --model_name_or_path {0}/a --train_file {0}.csv --validation_file {0}.csv"),
        ("run_glue", "run_glue.py --model_name_or_path {0}/a --dataset_name {0} --max_steps 5"),
        ("fairseq", "fairseq-train {0} --task masked_lm --arch roberta_base --max-update 5 --tokens-per-sample 64"),
        ("tpu_pretrain", "pretrain.py --pregenerated_data {0} --bert_model {0} --epochs 3"),
    ],
)
def test_the_commands_to_type_run_nothing_that_a_script_smuggles_in(script, command):
    """They are pasted into a shell: whatever a script says is one word of them, or part of one."""
    smuggled = "x; touch PWNED #`touch PWNED`$(touch PWNED)"
    flags = " --push_to_hub --hub_model_id me/x" if script.startswith("run_") else ""
    found, _ = taken(script, command.format(f"'{smuggled}'") + f" --output_dir '{smuggled}'{flags}", 1)
    for line in found.commands("run.yaml"):
        words = list(shlex.shlex(line, posix=True, punctuation_chars=True))
        assert ";" not in words and "`" not in words, line
    with pytest.raises(InputError, match=r"^--hub_model_id: 'me/x; touch PWNED #' is not OWNER/NAME"):
        taken("run_mlm", "run_mlm.py --train_file a.txt --push_to_hub --hub_model_id 'me/x; touch PWNED #'")


@pytest.mark.parametrize(
    ("script", "command", "message"),
    [
        ("run_mlm", "python run_clm.py", "has no run_mlm.py.* maskwright has no causal models"),
        ("run_mlm", "python run_language_modeling.py --train_data_file a", "without --mlm it trains a causal model"),
        ("run_mlm", "fairseq-hydra-train task.data=d", "give the same values as flags of fairseq-train"),
        ("run_mlm", "run_mlm.py --do_eval", "without --do_train, it only evaluates .* Fix: use `maskwright evaluate"),
        ("run_glue", "run_glue.py --task_name rte --do_predict", "`maskwright predict MODEL --input FILE --to OUT`"),
        ("run_glue", "python run_ner.py --data_dir d", "labels words; begin with the recipe conll2003"),
        ("run_glue", "run_glue.py --task_name imdb", "imdb is not a task of GLUE. Fix: choose one of cola, mnli"),
        ("run_mlm", "python run_mlm.py --train_file $TEXT", "uses \\$TEXT, whose value needs a shell"),
        ("run_mlm", "python run_mlm.py --train_file $(ls)/a", "uses \\$\\(ls\\), whose .* its value in the command"),
        ("run_mlm", "python run_mlm.py --bf16 $MORE", "uses \\$MORE"),
        ("run_mlm", "python run_mlm.py --output_dir out $@", "give --var @=VALUE"),
        ("run_mlm", "python run_mlm.py --bf16 $FLAG", "uses \\$FLAG"),
        ("run_mlm", "python run_mlm.py --train_file ~/a.txt", "give --var HOME=VALUE"),
        ("run_mlm", "S=6; if x; then S=7; run_mlm.py --seed $S; fi", "has 'if': only assignments and commands are"),
        ("run_mlm", "run_mlm.py --seed ${S:-7}", "uses \\${S:-7}, whose value needs a shell"),
        ("run_mlm", "S=7; x || S=8; run_mlm.py --seed $S", "uses \\$S"),
        ("run_mlm", "S=7; for S in 1 2; do run_mlm.py --seed $S; done", "has 'for': .* command alone, in single q"),
        ("run_mlm", 'A=(--bf16 --seed 7); run_mlm.py "${A[@]}"', r"uses \$\{A\[@\]\}, .* its value in the command"),
        ("run_mlm", "A=1; A+=7; run_mlm.py --seed $A", "uses \\$A"),
        ("run_mlm", "S=7; [ -z $1 ] && S=8; run_mlm.py --seed $S", "uses \\$S"),
        ("run_mlm", "echo run_mlm.py --seed 1", "has no run_mlm.py"),
        ("run_mlm", "python run_mlm.py \\ \n --bf16", "line 1 ends in a backslash and a space"),
        ("run_mlm", "A=aaaaaaaaaa;" + "A=$A$A;" * 20 + "run_mlm.py", "more than 1,000,000 letters"),
        ("run_mlm", "python run_mlm.py --train_file 'a", "lacks the end of its '"),
        ("run_mlm", "python run_mlm.py --learning_rate fast", "fast is not a number"),
        ("run_mlm", "python run_mlm.py --lr_scheduler_kwargs {a", "is not a JSON object"),
        ("fairseq", "fairseq-train d --adam-betas 0.9", "not a pair"),
        ("fairseq", "fairseq-train d --input_shapes 512", "is not ROWSxTOKENS"),
        ("fairseq", "fairseq-train --fp16", "names no folder of data"),
        ("fairseq", "fairseq-train d --lr 0", "is not above 0"),
        ("run_mlm", "run_mlm.py --seed 1e400", "is not a number"),
        ("run_mlm", "run_mlm.py --config_overrides max_position_embeddings=abc", "is not a number"),
        ("tpu_pretrain", "pretrain.py --train_batchsize 4", "is unknown, and close to --train_batch_size. Fix: write"),
        ("run_mlm", "run_mlm.py --per_device_train_batch 4", "close to --per_device_train_batch_size"),
        ("run_mlm", "run_mlm.py --warmup_rato 0.1", "close to --warmup_ratio"),
        ("fairseq", "fairseq-train d --max-upadte 4", "--max-upadte: is unknown, and close to --max-update. Fix"),
        ("tpu_pretrain", "cd pretrain && ls", "has no pretrain.py or finetune_on_pregenerated.py or pregenerate_train"),
    ],
)
def test_what_cannot_be_read_is_one_line(script, command, message):
    with pytest.raises(InputError, match=message):
        imported(script, command)


def test_every_flag_of_the_page_is_known():
    page = (Path(__file__).parents[2] / "docs" / "from-run-mlm.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `--")]
    flags = [flag for row in rows for flag in re.findall(r"--\w+", row)]
    odd = {"--optim": "adamw_torch", "--lr_scheduler_kwargs": "{}", "--task_name": "rte", "--config_overrides": "a=1"}
    odd |= dict.fromkeys(("--mlm_probability", "--adam_beta1", "--adam_beta2", "--label_smoothing_factor"), "0.1")
    odd |= {"--max_seq_length": "64", "--warmup_ratio": "0.1"}
    assert len(flags) > 70
    starts = [("run_mlm", "run_mlm.py"), ("run_glue", "run_glue.py")]
    for flag in flags:
        data = "--dataset_name a/b" if flag.startswith("--dataset") else "--train_file text.csv"
        typed = f"{data} --do_train {flag} {odd.get(flag, '1')}"
        said = [taken(script, f"python {start} {typed}")[0] for script, start in starts]
        assert {fates(one).get(flag) for one in said} - {"unknown", "default", None}, flag
