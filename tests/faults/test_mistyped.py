"""What people type who come from other programs, or in a hurry: one line that says what to type instead."""

import http.server
import itertools
import json
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from loopback import serving

from maskwright.config import recipes
from maskwright.config.foreign_names import COMMANDS
from maskwright.core import storage
from maskwright.processes.child import python_module

OF_IDS = (
    *("column c", "valid-fraction 0.1", "special-tokens strip", "dtype int32", "encoder e"),
    *("shard-tokens 9", "tokenizer t", "from-format mds", "workers 2", "token-offset 1"),
)
"""Options of `data convert` that have no effect on what a store is written as."""


def rows(table):
    """The pairs of a table of `what is typed => what is said`."""
    pairs = (row.split(" => ") for row in table.replace("\n    => ", " => ").strip().splitlines())
    return [(words, said) for words, said in pairs]


OTHERWISE = """
pretrain x.yaml --lr 5 => --set optimizer.learning_rate=5
pretrain x.yaml --lr=5 --run y => --set optimizer.learning_rate=5
pretrain x.yaml -lr 5 => --set optimizer.learning_rate=5
pretrain x.yaml --optimizer.eps 1e-6 => --set optimizer.eps=1e-6
pretrain x.yaml --optimizer.learnign_rate 1 => --set optimizer.learning_rate=1
pretrain x.yaml --bf16 => --set engine.dtype=bf16
pretrain x.yaml --bert_model roberta-base => --set model.init_from=hf://FacebookAI/roberta-base
finetune x.yaml --simulated_gpus 4 => --set batch.virtual_workers=4
finetune x.yaml --precision 16 => --set engine.dtype=auto
verify-resume x.yaml --learning_rate --debug => --set optimizer.learning_rate=VALUE
pretrain x.yaml --output_dir y => did you mean --run?
pretrain x.yaml --stop-after-stepz 5 => did you mean --stop-after-steps
data prepare a --tokenizer t --to s --valid-fraction 1.5 => give 0.01 to hold out
dta => did you mean data?
pretrain x.yaml --resume => leave it out:
pretrain x.yaml --vocab v => `maskwright data prepare --tokenizer FOLDER`
finetune x.yaml --max-train-samples 9 => data.fraction sets
pretrain --config x.yaml --run y => give CONFIG without an option
pretrain x.yaml --separators x => `maskwright pretrain --help`
data prepare x.txt --lr 5 => `maskwright data prepare --help`
evaluate a b => see `maskwright evaluate --help`
pretrain nano --run => see `maskwright pretrain --help`
-V => `maskwright --help`
pretrain nano => give --run PATH:
evaluate a --device gpu => give one of them: Device
sync r => give --to wandb or mlflow: Service
pretrain nano --run y --stop-after-steps five => give an integer ≥ 1
pretrain nano --run y --stop-after-steps 2.000 => give an integer ≥ 1; write 10000, without a separator
pretrain nano --run y --stop-after-hours 0,5 => give a number ≥ 0; use . as the decimal point
pretrain nano --run y --set schedule.steps=１０ => give an integer ≥ 1, or null; the digits are 0 to 9
pretrain nano --run y --set optimizer.learning_rate=0,01 => give a number > 0; the default is 0.0005; use .
tokenizer train x.txt --to t --kind characters --lowercase => take --kind wordpiece, or leave it out
tokenizer train x.txt --to t --alphabet dna => take --kind characters or kmer, or leave it out
quickstart --layout lines => add --text, or leave it out
data prepare a --tokenizer t --to s --valid-files b --valid-fraction 0.1 => leave it out
import weights a --to b --devices 8 => leave it out
image lab.yaml --libtpu => leave it out
recipes show small => `maskwright recipes NAME`
env plan lab.yaml => `maskwright env up ENV.yaml --dry-run`
submit slurm nano --run r --env A_KEY=hidden12 => leave it out: sbatch passes your environment on; `export NAME=…`
submit kubernetes nano --run r --node-selector a=b => `--job-template FILE`, a YAML whose spec.template.spec
list ray => `maskwright status RUN`; `maskwright status ray:`
data tokenize a.txt => `maskwright data prepare TEXT --tokenizer FOLDER --to STORE`
resume runs/a => the command that started the run
push runs/a => `maskwright export RUN --to FOLDER --push OWNER/NAME`
fine-tune x.yaml => `maskwright finetune CONFIG --run RUN`
"""
"""What is typed, and how the fix begins."""


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        *rows(OTHERWISE),
        *((f"data convert s --to t --to-format parquet --{words}", "leave it out") for words in OF_IDS),
    ],
)
def test_what_is_typed_otherwise_here(cli, words, fix):
    result = cli(*words.split())
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert f". Fix: {fix}" in result.error


@pytest.mark.parametrize(
    ("command", "words", "gone", "sets"),
    [
        ("pretrain", "--num_steps=9 --report_interval=3 --logdir=out", 3, "schedule.steps=9 logging.every_steps=3"),
        (
            "pretrain",
            "--save-dir out --task masked_lm --criterion masked_lm --lr_scheduler_type polynomial_decay --lr 0.0004 "
            "--sample-break-mode complete_doc --adam-betas=(0.9,0.98) --clip-norm 0 --max-epoch 2 --metrics_debug "
            "--input_shapes 2x32 --arch roberta_base --fp16 False --skip-invalid-size-inputs-valid-test",
            14,
            "schedule.kind=linear optimizer.learning_rate=0.0004 data.packing=documents optimizer.beta1=0.9 "
            "optimizer.beta2=0.98 optimizer.max_grad_norm=null schedule.epochs=2 batch.micro_batch_rows=2 "
            "data.seq_len=32 model.architecture=roberta model.size=base",
        ),
        (
            "pretrain",
            "--run out --optim adamw_torch_fused --lr_scheduler_type constant_with_warmup --report_to none --epochs 2 "
            "--per_device_train_batch_size 4 --do_train --save_total_limit 3 --mixed_precision no --logging_steps 7",
            9,
            "optimizer.kind=adamw schedule.kind=constant logging.report_to=[] schedule.epochs=2 "
            "batch.micro_batch_rows=4 checkpoint.keep=3 engine.dtype=fp32 logging.every_steps=7",
        ),
        (  # Lightning, composer and axolotl
            "pretrain",
            "--default_root_dir out --precision 32-true --log_every_n_steps 5 --fast_dev_run --deterministic True "
            "--sample_packing --alpha_f 0.1 --sequence_len 64 --flash_attention --gradient_clip_val 0.5 --max_steps 9",
            11,
            "engine.dtype=fp32 logging.every_steps=5 data.packing=full_sentences schedule.final_lr_share=0.1 "
            "data.seq_len=64 optimizer.max_grad_norm=0.5 schedule.steps=9",
        ),
        (  # simpletransformers, run_glue, sentence-transformers and Lightning
            "finetune",
            "--output_dir out --manual_seed 4 --num_train_epochs 1 --limit_train_batches 0.5 --scheduler "
            "linear_schedule_with_warmup --max_seq_length 16 --warmup_ratio 0.1 --n_gpu 1 "
            "--metric_for_best_model eval_f1 --use_early_stopping --reprocess_input_data "
            "--learning_rate 1e-4 --logger false",
            13,
            "seed=4 schedule.epochs=1 data.fraction=0.5 schedule.kind=linear data.max_seq_len=16 "
            "schedule.warmup_share=0.1 evaluation.metric=f1_macro optimizer.learning_rate=1e-4 logging.report_to=[]",
        ),
    ],
)
def test_all_unknown_options_are_one_error_and_its_command_works(
    cli, store, tmp_path, monkeypatch, command, words, gone, sets
):
    monkeypatch.chdir(tmp_path)
    yaml = tmp_path / "x.yaml"
    sizes = "{hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64}"
    if command == "pretrain":
        length = "" if "steps" in words and "epoch" not in words else "schedule: {epochs: 1}"
        yaml.write_text(f"data: {{store: {store.location}}}\nmodel: {sizes}\n{length}\n")
    else:
        (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"ab{i} c,{'xy'[i % 2]}\n" for i in range(60)))
        yaml.write_text(
            f"data: {{train: a.csv, label: label}}\nmodel: {{tokenizer: {store.location}/tokenizer, size: nano}}\n"
        )
    result = cli(command, yaml, *shlex.split(words))
    first, *lines, corrected = result.err.splitlines()
    assert (result.code, len(lines), str(gone) in first) == (2, gone, True), result.err
    assert all(line.startswith("  no option --") and ". Fix: " in line for line in lines)
    typed = shlex.split(corrected)
    assert [word for before, word in itertools.pairwise(typed) if before == "--set"] == sets.split()
    assert typed[:3] == ["maskwright", command, str(yaml)] and typed[typed.index("--run") + 1] == "out"
    again = cli(*typed[1:], "--dry-run")
    assert again.code == 0, again.err


CORRECTED = """
compare m random --task x.yaml --lr 1e-4 --max_seq_length 64 --seed 3 --output_dir out
    => compare m random --task x.yaml --learning-rates 1e-4 --set data.max_seq_len=64 --search-seed 3 --to out
compare m --task x.yaml --model_name_or_path n --epochs 2 => compare m --task x.yaml --set schedule.epochs=2
verify-resume squad --max_seq_length 64 --epochs 1
    => verify-resume squad --set data.max_seq_len=64 --set schedule.epochs=1
predict m --test_file a.csv --max_length 64 --output o.csv => predict m --input a.csv --max-seq-len 64 --to o.csv
predict m --input a.csv --text_column_name t --out o => predict m --input a.csv --text-column t --to o
embed m --input a.csv --out a.npy --top_k 3 => embed m --input a.csv --to a.npy
tokenizer train a.txt --vocab_size 9 --save_dir t => tokenizer train a.txt --vocab-size 9 --to t
data prepare a.txt --tokenizer_name t --num_proc 4 --output_dir s => data prepare a.txt --tokenizer t --workers 4 --to s
export r --out x --hub_model_id a/b => export r --to x --push a/b
"""


@pytest.mark.parametrize(("typed", "corrected"), rows(CORRECTED))
def test_a_corrected_line_is_of_the_command_that_was_typed(cli, typed, corrected):
    result = cli(*typed.split())
    assert (result.code, result.err.splitlines()[-1].strip()) == (2, f"maskwright {corrected}"), result.err


def test_every_flag_of_the_pages_has_a_word(cli):
    """Of the tables of flags on the pages for those who come from elsewhere."""
    root = Path(__file__).resolve().parents[2]
    for page, heading, command in (
        ("docs/from-fairseq.md", "## Every flag", "pretrain"),
        ("deploy/older-setup.md", "## `allenai/tpu_pretrain`", "pretrain"),
        ("deploy/older-setup.md", "## The AI Platform", "finetune"),
        ("deploy/older-setup.md", "## The Ray guidebook", "pretrain"),
    ):
        section = (root / page).read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
        cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
        flags = {flag for cell in cells for flag in re.findall(r"--[\w-]+", cell)} - {"--datapath", "--env"}
        assert len(flags) >= 10, page
        for flag in flags:
            error = cli(command, "x.yaml", flag).err
            assert "--help` lists them" not in error, (page, flag)


def test_every_advised_command_is_there(cli):
    commands = {
        each for said in COMMANDS.values() for each in re.findall(r"`maskwright ([a-z ]+?)(?: [A-Z-].*?)?`", said)
    }
    assert len(commands) > 15
    for words in commands:
        assert cli(*words.split(), "--help").code == 0, words


def test_recipes_are_listed_and_printed(cli):
    listed = cli("recipes").out
    for kind in ("pretrain", "finetune"):
        for name in recipes.names(kind):
            assert f"\n  {name} " in listed
            assert cli("recipes", name).out.rstrip() == recipes.read(name).rstrip()
    assert len(json.loads(cli("recipes", "--json").out)["recipes"]) == listed.count("\n  ")
    assert cli("recipes", "smal").error.startswith("smal: is not a recipe. Fix: did you mean small?")


MISTAKES = """
pretrain CONFIG --run out --set data.store=nostore => nostore: is not a token store: there is no such folder.
pretrain CONFIG --run out --set data.store=stroe
    => there is no such folder. Fix: did you mean store? Else make one: `maskwright data
data inspect CONFIG => is not a token store: it is a file. Fix: correct the path
evaluate runs => runs: has no config.json, and is not a run directory. Fix: did you mean runs/one?
fill runs x => Fix: did you mean runs/one?
pretrain CONFIG --run out --set model.init_from=runs/one => runs/one/config.resolved.json:1:1: is not JSON
pretrain CONFIG --run out --set model.init_from=models/none => models/none: no such folder. Fix: correct the path
pretrain CONFIG --run out --set model.init_from=models/roberta-base
    => Fix: fetch it: `hf download FacebookAI/roberta-base --local-dir models/roberta-base`; or give hf://FacebookAI/ro
pretrain CONFIG --run out --set model.init_from=roberta-base => Fix: give hf://FacebookAI/roberta-base for the model on
pretrain CONFIG --run out --dry-run --set model.init_from=answerdotai/ModernBERT-base
    => Fix: give hf://answerdotai/ModernBERT-base for the model on
pretrain CONFIG --run out --fresh-optimizer => --fresh-optimizer: has no effect without --from. Fix: add --from
pretrain CONFIG --run out --from runs/two@5 => runs/two: is not there. Fix: give the folder that
data prepare wikitext --tokenizer t --to out => hf download OWNER/wikitext --repo-type dataset
data audit wiki/train.csv => wiki/train.csv: matches no file. Fix: check the path; quote globs in the shell
data prepare wiki/*.txt --tokenizer t --to out => matches no file. Fix: check the path; quote globs
data audit hf://datasets/wikitext => got 'wikitext'. Fix: write hf://datasets/OWNER/NAME/FILE
data audit nothing://a/b => no file system has the name nothing://. Fix: give a path, gs:// or s3://
plan CONFIG --on h10 => 'h10' is not a device that `plan` supports. Fix: did you mean h100
pretrain CONFIG --run gs:/b/run => gs:/b/run: must be a local folder
export CONFIG --to gs://b/model => gs://b/model: must be a local folder
pretrain recipes/nano.yaml --run out => no such file. Fix: did you mean the recipe nano?
pretrain CONFIG --run out --dry-run --set checkpoint.copy_to=gs:/b/c => gs:/b/c: names no folder
pretrain CONFIG --run out --dry-run --set checkpoint.copy_to=http://b/c => http://b/c: names no folder
pretrain CONFIG --run out --dry-run --set checkpoint.copy_to=/nfs/c => as gs://bucket/folder, or file://FOLDER
env up CONFIG --dry-run => is the YAML of a run, not of an environment. Fix: see docs/google-cloud.md
pretrain ag-news --run out => is a recipe of `finetune`, not of `pretrain`. Fix: use `maskwright finetune`
finetune CONFIG --run out => is the YAML of pretraining (data.store), not of a fine-tuning run. Fix: use `maskw
pretrain RECIPES/finetune/ag-news.yaml --run out => is the YAML of a fine-tuning run (data.train), not of pretra
plan squad --on h100 => is not here, so the length of its examples is unknown. Fix: give --examples N
plan small --on h100 --examples 9 => --examples: has no effect for pretraining. Fix: leave it out
plan small --tokens 9 => Fix: add --set schedule.epochs=4 to read the text four times
plan CONFIG --on h100 --region mars => --region: the price table has no region 'mars'. Fix: choose one of asia-east1
plan CONFIG --region us-central1-a
    => --region: the price table has no region 'us-central1-a'. Fix: did you mean us-central1?
plan CONFIG --on v6:2x4 => 'v6:2x4' is not a device that `plan` supports. Fix: did you mean v6e:2x4?
verify-resume CONFIG --kills 0 => verify-resume needs at least 8 steps and 1 kill. Fix: raise --steps or --kills
submit slrum CONFIG --run out => 'slrum' is no place to run. Fix: did you mean slurm?
"""


@pytest.mark.parametrize(("words", "says"), rows(MISTAKES))
def test_mistakes_are_told_with_their_cure(cli, config_file, words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("store/manifest.json", "runs/one/config.resolved.json"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    words = words.replace("RECIPES", str(recipes.FOLDER))
    result = cli(*[str(config_file()) if word == "CONFIG" else word for word in words.split()])
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert says in result.error and ".. " not in result.error
    assert not (tmp_path / "out").exists()


def test_a_package_that_is_not_installed_is_named(cli, monkeypatch):
    """adlfs is not among ours; s3fs and gcsfs are, in extras."""
    for package, scheme, says in (
        ("adlfs", "abfs", "abfs:// needs the package adlfs. Fix: pip install adlfs"),
        ("s3fs", "s3", "s3fs is not installed. Fix: in a clone run scripts/install --s3"),
        ("gcsfs", "gs", "gcsfs is not installed. Fix: in a clone run"),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
        result = cli("data", "audit", f"{scheme}://bucket/a.txt")
        assert result.code == 2 and says in result.error


def test_a_host_that_is_not_there_is_one_line_and_soon(cli, config_file, tmp_path, monkeypatch):
    """gcsfs alone would try for minutes; a port on which nobody listens refuses at once, as a missing name does."""
    pytest.importorskip("gcsfs", reason="needs the gcs extra")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setitem(fsspec.config.conf, "gs", {"endpoint_url": address})
        monkeypatch.setattr(storage, "FIRST_CONTACT_SECONDS", 0.3)
        copied = config_file(checkpoint={"copy_to": "gs://typo/run"})
        for command in (
            ("data", "audit", "gs://typo/a.txt"),
            ("data", "prepare", "gs://typo/*.txt", "--tokenizer", "t", "--to", tmp_path / "out"),
            ("pretrain", copied, "--run", tmp_path / "out"),
            ("status", "gs://typo/run"),
        ):
            result = cli(*command)
            assert (result.code, "gs://typo/" in result.error) == (1, True), result.err
            assert "127.0.0.1 cannot be reached: Connection refused. Fix: check the network" in result.error
        for command in (("data", "audit", f"{address}/a.txt"), ("data", "pull", f"{address}/a.tar", "--to", "out")):
            result = cli(*command)
            assert (result.code, "Fix: check the network and the address" in result.error) == (1, True), result.err


def test_an_untrusted_certificate_is_no_missing_file(cli, tmp_path):
    words = shlex.split("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost")
    openssl = shutil.which("openssl") or pytest.skip("needs openssl, to make a certificate")
    subprocess.run([openssl, *words, "-keyout", "key", "-out", "cert"], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with serving(http.server.SimpleHTTPRequestHandler, context) as address:
        for command in (("data", "audit", f"{address}/a.txt"), ("data", "pull", f"{address}/a.tar", "--to", "out")):
            result = cli(*command)
            assert (result.code, "CERTIFICATE_VERIFY_FAILED" in result.error) == (1, True), result.err
            assert "set SSL_CERT_FILE if the network has its own certificates" in result.error


def test_a_public_bucket_without_keys_has_an_address_with_https(cli, tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="needs the extra s3")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for place in ("a.tar.gz", "store"):
        fsspec.filesystem("s3").clear_instance_cache()
        result = cli("data", "pull", f"s3://public/{place}", "--to", tmp_path / "out")
        assert "Fix: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in result.error, result.err
    fsspec.filesystem("s3").clear_instance_cache()  # those without keys


def test_a_signal_during_the_imports_is_told_in_one_line():
    program = """if True:
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests themselves may run in the background
        from maskwright.__main__ import main
        class Finder:
            def find_spec(self, name, *_):
                name == "maskwright.cli.env" and os.kill(os.getpid(), 2)
        sys.meta_path.insert(0, Finder())
        main()"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stderr) == (75, "stopped: run the command again\n")


def test_no_file_of_the_working_directory_is_run(tmp_path):
    """Whoever works in a folder of data runs none of its files, neither by a command nor by those that it starts."""
    for name in ("maskwright", "typer", "yaml", "queue", "tokenizers"):
        (tmp_path / f"{name}.py").write_text("open('RUN', 'a').write(__name__)\n")
    (tmp_path / "a.txt").write_text("")
    words = python_module("maskwright", "quickstart", "--text", "a.txt", "--to", "q")
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "$ maskwright data audit a.txt" in ended.stdout and "documents: 0" in ended.stdout, ended.stderr
    assert ended.returncode == 2 and "error: a.txt: is empty" in ended.stderr
    assert not (tmp_path / "RUN").exists()
