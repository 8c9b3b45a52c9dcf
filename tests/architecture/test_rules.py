"""The rules of the house, checked from the source text: who imports whom, how large a file is, which keys exist."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal, get_args, get_origin

import family_table
import pytest
import tiers
from reference.parity_rows import NOT_COMPARED, ROWS
from safetensors.numpy import save_file

from maskwright.cli.pages import finetuning_page, run_page
from maskwright.config.finetuning import FinetuningOptimizer, read_finetune_config
from maskwright.config.pretraining import ALL_KEYS, RunConfig, read_config
from maskwright.core.extras import EXTRAS, TRAIN
from maskwright.model.config import ModelConfig
from maskwright.model.hf.config import to_hf_config
from maskwright.model.initial import initial_parameters
from maskwright.tasks.pretrain.prepare import prepare_run

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "maskwright"
FILES = sorted(SOURCE.rglob("*.py"))

# A package may import itself and those it lists. Arrows point down: cli is above all, core below.
LAYERS = {
    "core": set(),
    "config": {"core"},
    "machine": {"core"},
    "processes": {"core", "machine"},
    "run": {"core", "config"},
    "text": {"core", "machine", "processes"},
    "data": {"core", "config", "processes", "text"},
    "labels": {"core", "config", "text", "data"},
    "model": {"core", "config"},
    "engines": {"core", "config", "machine", "processes", "data", "model"},
    "training": {"core", "config", "machine", "processes", "run", "data", "model", "engines"},
    "launch": {"core", "config", "machine", "processes", "run"},
    "cloud": {"core", "config", "machine", "processes", "launch"},
    "doctor": {"core", "machine", "processes"},
    "monitor": {"core", "run"},
    "report": {"core", "config", "run", "monitor"},
    "verdict": {"core", "labels", "report"},
}
LAYERS["tasks"] = set(LAYERS) - {"launch", "cloud", "doctor", "monitor"}
LAYERS["prove"] = (LAYERS["tasks"] | {"tasks"}) - {"labels", "model", "machine"}
LAYERS["api"] = (LAYERS["tasks"] | {"tasks"}) - {"model", "training", "machine"}
LAYERS["cli"] = set(LAYERS)
ROOMS = {
    "cloud": [{"google"}, {"provision", "vertex", "old_setup"}, {"report"}],
    "data": [{"foreign", "prepare"}],
    "engines": [{"torch", "jax"}],
    "launch": [{"hosts"}, {"ray"}, {"schedulers"}],
    "model": [{"hf"}, {"torch", "jax", "onnx"}],
    "monitor": [{"sync", "watch"}],
    "tasks": [
        {"models", "start", "importing"},
        {"planning"},
        {"pretrain", "finetune"},
        {"use", "compare"},
        {"measure"},
        {"export"},
        {"search"},
    ],
    "text": [{"cleaning"}, {"parts"}],
}
"""The packages inside a room, floor by floor: one imports only those of the floors before its own."""
# torch, jax and onnx are imported only below folders of their names. Other libraries have few doors.
HEAVY = {
    "torch": set(),
    "jax": set(),
    "onnx": set(),
    "onnxruntime": {"tasks/export/onnx.py"},
    "transformers": {
        "tasks/export/hugging_face.py",
        "model/torch/compare.py",
        "tasks/search/finetune.py",
        "text/vocabulary_files.py",
    },
    "huggingface_hub": {"tasks/models/hub.py"},
    "tokenizers": {"text/tokenizer.py", "text/sequences.py", "labels/encode.py"},
    "gigatoken": {"text/encoder.py"},
    "rensa": {"text/cleaning/near_duplicates.py"},
    "py3langid": {"text/cleaning/language.py"},
    "fastwarc": {"text/records.py"},
    "sklearn": {"tasks/compare/linear.py"},
    "bm25s": {"tasks/compare/retrieval.py"},
    "sentence_transformers": {"tasks/search/finetune.py"},
    "datasets": {"tasks/search/finetune.py"},
    "scipy": {"tasks/compare/linear.py"},
    "pyarrow": {"text/arrow.py", "text/parquet.py", "data/foreign/columns.py", "data/foreign/write.py"},
    "zstandard": {"text/compression.py"},
    "ray": {"launch/ray/gang.py", "launch/ray/jobs.py"},
    "google": {"cloud/google/rest.py"},
    "requests": {"cloud/google/rest.py", "launch/ray/jobs.py"},
    "wandb": {"monitor/sync/wandb.py"},
    "mlflow": {"monitor/sync/mlflow.py"},
    "starlette": {"monitor/watch/server.py"},
    "uvicorn": {"monitor/watch/server.py"},
    "plotly": set(),
}
TOP = {"__init__.py", "__main__.py"}
"""The files beside the packages."""
FOREIGN_TEXT = {
    "cloud/google/errors.py": "Google's answers",
    "core/library_errors.py": "torch's and XLA's out of memory",
    "engines/torch/engine.py": "torch's name of a kernel without an exact form",
    "launch/ray/jobs.py": "the status codes that Ray's client puts into its errors",
    "core/folder.py": "gcsfs's 403, an OSError without a number",
}
"""Where something is decided by the words of an error, and whose words these are: never our own."""
FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "joblib", "lightning", "litdata", "torch_xla"}


@cache
def tree(path):
    return ast.parse(path.read_text())


def imports(path):
    """(module, at the top of the file) of each import."""
    top = set(map(id, tree(path).body))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or "", id(node) in top
            yield from ((f"{node.module}.{alias.name}", id(node) in top) for alias in node.names)


def name(path):
    return path.relative_to(SOURCE).as_posix()


def of_each_file(rule):
    """One test of all files, which says what each of them breaks."""

    def test():
        broken = []
        for path in FILES:
            try:
                rule(path)
            except AssertionError as error:
                broken.append(str(error).partition("\n")[0])
        assert broken == []

    return test


@of_each_file
def test_imports_point_down(path):
    if name(path) in TOP:
        return
    package = name(path).split("/")[0]
    for module, _ in imports(path):
        parts = module.split(".")
        if parts[0] == "maskwright" and len(parts) > 1 and parts[1] != "__version__":
            assert parts[1] in {package} | LAYERS[package], f"{name(path)} imports {module}"


def test_every_package_of_a_room_has_its_floor():
    packages = {}
    for path in SOURCE.glob("*/*/__init__.py"):
        packages.setdefault(path.parent.parent.name, set()).add(path.parent.name)
    assert packages == {room: set().union(*floors) for room, floors in ROOMS.items()}


@of_each_file
def test_no_arrow_inside_a_room_goes_up(path):
    """Of the files that lie in a room beside its packages, the circles are refused, by the next test."""
    room, *rest = name(path).split("/")
    floors = ROOMS.get(room, [])
    floor = {package: number for number, packages in enumerate(floors) for package in packages}
    if not rest or rest[0] not in floor:
        return
    for module, _ in imports(path):
        top, other, *inside = module.split(".") if "." in module else (module, "")
        if (top, other) == ("maskwright", room) and inside and inside[0] in floor and inside[0] != rest[0]:
            assert floor[inside[0]] < floor[rest[0]], f"{name(path)} imports {module}"


def test_no_imports_in_a_circle():
    """Of modules and, inside each package, of its sub-packages; imports inside functions count too."""
    modules = {"maskwright." + name(path).removesuffix(".py").replace("/", "."): path for path in FILES}
    arrows = {}
    for module, path in modules.items():
        arrows[module] = {found for found, _ in imports(path) if found in modules and found != module}
    assert_no_circle(arrows)
    rooms = {}
    for module, found in arrows.items():
        for other in found:
            mine, theirs = module.split("."), other.split(".")
            shared = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b)
            here, there = ".".join(mine[: shared + 1]), ".".join(theirs[: shared + 1])
            rooms.setdefault(here, set()).add(there)
    assert_no_circle(rooms)


def assert_no_circle(arrows):
    try:
        list(TopologicalSorter(arrows).static_order())
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


@of_each_file
def test_heavy_libraries_have_few_doors(path):
    for module, _ in imports(path):
        library = module.split(".")[0]
        assert library not in FORBIDDEN, f"{name(path)} imports {library}"
        if library in HEAVY and f"/{library}/" not in name(path):
            assert name(path) in HEAVY[library], f"{name(path)} imports {library}"
        assert library != "typer" or name(path).startswith("cli/"), f"{name(path)} imports typer"
    if name(path).startswith(("core/", "config/", "machine/", "processes/", "run/")):
        assert not {"torch", "numpy", "jax"} & {module.split(".")[0] for module, _ in imports(path)}


def test_no_decision_by_a_sentence_of_our_own():
    """Types, reasons and exit codes decide. Looks for `… in str(error)`, `error.what.startswith(…)` and a regex on
    either."""

    def text_of_an_error(node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
            return any(isinstance(one, ast.Name) and one.id in ("error", "failure") for one in node.args)
        return isinstance(node, ast.Attribute) and node.attr in ("what", "message")

    found = set()
    for path in FILES:
        for node in ast.walk(tree(path)):
            looked_at = []
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                looked_at = node.comparators
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in ("startswith", "endswith", "find"):
                    looked_at = [node.func.value]
                elif node.func.attr in ("match", "search", "fullmatch"):
                    looked_at = node.args
            if any(text_of_an_error(part) for part in looked_at):
                found.add(name(path))
    assert found == set(FOREIGN_TEXT)


def test_one_function_says_how_a_python_of_its_own_is_started():
    """Python imports from the working directory, which may be somebody else's, unless it is told not to."""
    started = [
        name(path)
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.List | ast.Tuple) and any(ast.unparse(part) == "sys.executable" for part in node.elts)
    ]
    assert started == ["processes/child.py"]


def test_commands_to_be_typed_quote_the_places_in_them():
    """`console.typed` does: a folder's name may have a space."""
    command = re.compile(r"maskwright (?:[a-z]+ )+(?:--[a-z-]+ )*\{")
    lines = [(name(path), line) for path in FILES for line in path.read_text().splitlines()]
    assert not [(file, line) for file, line in lines if command.search(line) and "prog_name=" not in line]


def test_one_room_prints():
    """So that nothing of others reaches a terminal with control characters. The other two answer their parent."""
    printing = {
        name(path)
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "sys.stdout.write")
    }
    assert printing == {"core/console.py", "engines/jax/probe.py", "engines/torch/probe.py"}


@of_each_file
def test_functions_fit_a_screen(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno
            assert length <= 75, f"{name(path)}: {node.name} has {length} lines"


def test_a_public_class_name_stands_for_one_thing():
    defined = {}
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(name(path))
    assert not {word: files for word, files in defined.items() if len(files) > 1}


def test_every_package_is_in_the_layers():
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} == set(LAYERS)
    assert {path.name for path in SOURCE.glob("*.py")} == TOP


def test_the_house_is_the_table_of_the_architecture():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("### The rooms")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, re.MULTILINE)
    told = {room: set(re.findall(r"`(\w+)`", below)) for room, below in rows}
    assert told.pop("cli") == set() and told == {room: below for room, below in LAYERS.items() if room != "cli"}


def test_help_and_import_load_nothing_heavy():
    """That of each place to submit to as well, with what it imports to know its options, and an error's last line: a
    light installation has none of these."""
    code = (
        "import sys, maskwright.cli.main as c; from maskwright.cli.places import PLACES; "
        "code = max(c.run([*words, '--help']) for words in ([], *(['submit', place] for place in PLACES))); "
        "c._explain(OSError('gone'), 'status', False, False); "
        "heavy = {'torch', 'jax', 'numpy', 'onnx', 'transformers', 'tokenizers', 'pyarrow', 'rich', 'ray'}; "
        "heavy &= set(sys.modules); "
        "sys.exit(code or (f'loaded {sorted(heavy)}' if heavy else 0))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "pretrain" in result.stdout and "submit kubernetes" in result.stdout


def test_number_of_configuration_keys_is_pinned():
    """Each key is a promise. Adding one is a decision: change this number, CHANGELOG and docs with it."""
    assert len(ALL_KEYS) == 74


ENGINES_SECTIONS = ("data", "masking", "model", "optimizer", "schedule", "phases", "batch", "engine", "seed")
"""Of the configuration: those whose keys can make torch and JAX differ."""


def words(key):
    """What a key of the configuration may say, when that is one of a few words."""
    kind = RunConfig
    for name in key.split("."):
        kind = kind.model_fields[name].annotation
    kinds = [kind, *get_args(kind)]
    return {word for one in kinds if get_origin(one) is Literal for word in get_args(one)}


def test_every_option_is_compared_between_torch_and_jax():
    keys = {key for key in ALL_KEYS if key.split(".")[0] in ENGINES_SECTIONS}
    compared = {}
    for row in ROWS.values():
        for key, value in row.items():
            compared.setdefault(key, set()).add(repr(value) if isinstance(value, list) else value)
    assert keys - set(NOT_COMPARED) == set(compared), "a row in tests/reference/parity_rows.py for each"
    assert set(NOT_COMPARED) <= keys - set(compared)
    for key in compared:
        assert words(key) <= compared[key], f"{key}: no row says {words(key) - compared[key]}"
    assert words("optimizer.kind") == {"adamw", "muon"}  # that it finds any


def test_each_row_of_the_mutants_is_a_change_of_one_place_with_tests_that_are_there():
    """`scripts/mutants` makes the changes. Each room has some; a new promise brings a row."""
    script = runpy.run_path(str(ROOT / "scripts" / "mutants"))
    rows = script["rows"]()
    assert script["mistakes"](rows) == []
    assert len(rows) >= 120 and set(map(script["room"], rows)) == set(LAYERS)


def test_quick_tests_fit_into_five_minutes_of_two_cores():
    seconds = tiers.durations()
    assert {*tiers.ALWAYS.values()} <= {*seconds} and seconds[tiers.REST] > 60.0
    assert sum(taken for test, taken in seconds.items() if not tiers.is_long(test, seconds)) < tiers.QUICK_TOTAL_SECONDS


def test_repository_speaks_of_the_product_alone():
    """No machine's paths and no package index in what is committed."""
    words = ("/work/", "/root/", "/opt/wheels", "/opt/pypi", "file:///", "extra-index-url")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    names = [n for n in listed.split("\0") if n] or [str(p.relative_to(ROOT)) for p in FILES]
    for file in names:
        path = ROOT / file
        if path == Path(__file__).resolve() or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not [word for word in words if word in text], file


def test_locks_agree_and_hold_what_the_project_asks_for():
    """`scripts/lock` makes them. Several at once can be installed only where a package has the same versions in all."""
    locks = {path.stem: path.read_text() for path in (ROOT / "requirements").glob("*.lock")}
    pins = {}
    for text in locks.values():
        assert text.count("==") <= text.count("--hash=sha256:")
        own = {}
        for line in re.findall(r"^\S+==\S+", text, re.MULTILINE):
            own.setdefault(line.partition("==")[0], set()).add(line)
        for package, lines in own.items():
            assert pins.setdefault(package, lines) == lines
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {"core": [*project["dependencies"], *extras["train"], *extras["fast"]], "tpu": ["libtpu"]}
    alone = ("dev", "clean", "jax", "ray", "onnx", "wandb", "mlflow", "web", "linear")
    wanted |= {"gcp": [*project["dependencies"], *extras["gcp"]]} | {name: extras[name] for name in alone}
    for name, lines in wanted.items():
        for line in lines:
            package = re.split(r"[\[<>=]", line)[0].lower()
            assert package == "torch" or re.search(rf"^{package}==", locks[name], re.MULTILINE), f"{name}: {line}"
    assert set(TRAIN) == {re.split(r"[<>=]", line)[0].replace("-", "_") for line in extras["train"]}
    assert set(EXTRAS.values()) <= set(extras)


def test_scripts_are_executable():
    for script in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]:
        assert os.access(script, os.X_OK), script


def test_configuration_page_is_the_configuration():
    """`maskwright schema > docs/configuration.md` renews it."""
    assert (ROOT / "docs" / "configuration.md").read_text() == run_page()
    assert (ROOT / "docs" / "finetuning-configuration.md").read_text() == finetuning_page()


def test_the_page_has_the_encoders_that_tests_run_on():
    """`python tests/family_table.py` prints it, with tests/ on the path."""
    assert family_table.table() in (ROOT / "docs" / "recipes.md").read_text()


RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_and_plans(recipe, store, tmp_path):
    """As `pretrain --dry-run` does, on a small store."""
    config = read_config(str(recipe), [f"data.store={store.location}", "batch.virtual_workers=1"])
    small = ["batch.micro_batch_rows=1", f"data.store={store.location}", "batch.virtual_workers=1"]
    if config.model.init_from:
        shape = ModelConfig(store.vocabulary.size, 32, 2, 2, 64, config.data.seq_len + 2)
        save_file(initial_parameters(shape, 0), str(tmp_path / "model.safetensors"))
        (tmp_path / "config.json").write_text(json.dumps(to_hf_config(shape)))
        small.append(f"model.init_from={tmp_path}")
    ready = prepare_run(read_config(str(recipe), small))
    assert f"{config.schedule.steps:,} steps" in ready.describe()
    assert ready.loader.batches(0)[0].predicted > 0


FINETUNE_RECIPES = sorted((ROOT / "recipes" / "finetune").glob("*.yaml"))


@pytest.mark.parametrize("recipe", FINETUNE_RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_fine_tuning_has_the_setting_of_all(recipe):
    config = read_finetune_config(recipe.stem)
    assert (config.schedule.kind, config.schedule.epochs, config.batch.examples) == ("cosine", 5.0, 16)
    assert config.optimizer == FinetuningOptimizer(learning_rate=4e-5)


@of_each_file
def test_every_error_in_the_input_says_how_to_fix_it(path):
    kinds = {"InputError", "ConfigError", "SourceError", "StoreError", "TokenizerError", "ModelError"}
    kinds |= {"CheckpointError", "HealthError", "CloudError", "Refused"}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
            named = {keyword.arg for keyword in node.keywords}
            assert "fix" in named, f"{name(path)}:{node.lineno}: {ast.unparse(node)}"
