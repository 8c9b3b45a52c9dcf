"""`maskwright image` against the fake cloud: what is sent, what is waited for, what is shown of a failure."""

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from google_cloud.fake import fake_cloud

from maskwright import __version__
from maskwright.cli.main import run
from maskwright.cli.options import PANELS
from maskwright.cloud import record
from maskwright.cloud.environment import read_environment
from maskwright.cloud.provision import image
from maskwright.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
LAB = {"name": "lab1", "project": "lab-proj", "zone": "us-east5-b", "slice": {"accelerator": "v6e", "topology": "4x4"}}
NAME = "us-east5-docker.pkg.dev/lab-proj/lab1/maskwright"
TAG = f"{NAME}:{__version__}"
REPOSITORY = "artifactregistry/projects/lab-proj/locations/us-east5/repositories/lab1"
STATE = "lab-proj-maskwright-state"


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    """With a state bucket, a repository, and a terraform that must not be called."""
    terraform = tmp_path / "bin" / "terraform"
    terraform.parent.mkdir()
    terraform.write_text("#!/bin/sh\nexit 1\n")
    terraform.chmod(0o755)
    with fake_cloud() as made:
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{terraform.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(image, "POLL_SECONDS", 0.01)
        made.put(f"gs://{STATE}/env/lab1/started", "")
        made.resources[REPOSITORY] = {"name": REPOSITORY.partition("/")[2], "format": "DOCKER"}
        yield made


@pytest.fixture
def lab(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(json.dumps(LAB))
    return path


TRACKED = (image.DOCKERFILE, *image.FILES, "src/maskwright/__init__.py", "deploy/terraform/main.tf")
SECRETS = ("deploy/terraform/lab.tfvars", "src/.env", "src/maskwright/notes.py~", "deploy/.#Dockerfile", "src/key.pem")


@pytest.fixture
def source(tmp_path):
    """The least that counts as a checkout, with files that must not leave it."""
    folder = tmp_path / "source"
    for name in (*TRACKED, *SECRETS, "src/maskwright/__pycache__/a.pyc", "deploy/terraform/.terraform/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "src" / "terraform").symlink_to("../deploy/terraform")
    git(folder, "init", "--quiet")
    git(folder, "add", *TRACKED, "src/terraform")
    (folder / "src/maskwright/not-added.py").write_text("")
    return folder


def git(folder, *words):
    subprocess.run(["git", *words], cwd=folder, check=True)


def build(lab, source, *words):
    return run(["image", str(lab), "--source", str(source), "--yes", *words])


def scripted(cloud, *states):
    cloud.script("builds", list(states))


GOOD = {"status": "SUCCESS"}


def test_build_is_sent_waited_for_and_its_digest_printed(cloud, lab, source, capsys):
    scripted(cloud, {"status": "QUEUED"}, {"status": "WORKING"}, GOOD)
    who = "maskwright-build@lab-proj.iam.gserviceaccount.com"
    assert build(lab, source, "--service-account", who) == 0
    shown = capsys.readouterr()
    (made,) = [value for key, value in cloud.resources.items() if key.startswith("cloudbuild/")]
    digest = made["results"]["images"][0]["digest"]
    tag, said = shown.out.split()
    assert digest.startswith("sha256:") and said == digest and "for tpu" in shown.err
    assert re.fullmatch(rf"{re.escape(TAG)}-[0-9a-f]{{12}}", tag)
    (call,) = cloud.calls("cloudbuild.projects.locations.builds.create")
    body = call["body"]
    assert body["images"] == [tag] and body["logsBucket"] == f"gs://{STATE}/env/lab1/image"
    assert body["serviceAccount"] == f"projects/lab-proj/serviceAccounts/{who}"
    words = body["steps"][0]["args"]
    assert words[:3] == ["build", "-f", "deploy/Dockerfile"] and words[-3:] == ["-t", tag, "."]
    assert {"ACCELERATOR=tpu", "LIBTPU=yes", "RUN_AS=maskwright"} < set(words)
    place = body["source"]["storageSource"]
    content = cloud.objects[(place["bucket"], place["object"])].content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        names = archive.getnames()
        assert archive.getmember("src/terraform").linkname == "../deploy/terraform"
    assert set(names) == {*TRACKED, "src/terraform"}
    assert image.pack(str(source)) == content  # the same bytes for the same files


def test_only_what_git_tracks_is_uploaded(source):
    """Without git, as in a build of cloudbuild.yaml, by the endings of our files."""
    assert image.sources(str(source)) == sorted([*TRACKED, "src/terraform"])
    os.unlink(source / "deploy/terraform/main.tf")  # deleted, and not committed yet
    assert image.sources(str(source)) == sorted([*TRACKED[:-1], "src/terraform"])
    shutil.rmtree(source / ".git")
    assert image.sources(str(source)) == sorted([*TRACKED[:-1], "src/terraform", "src/maskwright/not-added.py"])
    (source / ".git").write_text("gitdir: nowhere")
    with pytest.raises(InputError, match="git cannot list its files"):
        image.sources(str(source))
    ours = ["git", "ls-files", *image.FOLDERS]
    listed = subprocess.run(ours, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    unknown = [name for name in listed if not name.endswith(image.ENDINGS) and not (ROOT / name).is_symlink()]
    assert {Path(name).suffix for name in unknown} <= {".md", ".in"}, "endings of files that the image is made of"


def test_failed_build_shows_the_end_of_its_log(cloud, lab, source, capsys):
    lines = [f"Step {number}" for number in range(100)] + ["error: no space; Authorization: Bearer abcdefgh12345"]
    scripted(cloud, {"status": "FAILURE", "failureInfo": {"type": "USER_BUILD_STEP", "detail": "step 0 failed"}})
    for number in (*range(1001, 1011), *range(1035, 1065)):  # the build's number is not known before it begins
        cloud.put(f"gs://{STATE}/env/lab1/image/log-00000000-0000-4000-8000-{number:0>12}.txt", "\n".join(lines))
    assert build(lab, source) == 1
    err = capsys.readouterr().err
    assert "Step 99" in err and "Step 50" not in err and "abcdefgh12345" not in err
    assert "the build ended with FAILURE: step 0 failed" in err.splitlines()[-1]


def test_image_of_the_same_source_is_not_built_again_and_jobs_run_the_last_one(cloud, lab, source, capsys):
    environment = read_environment(str(lab))
    assert record.read(environment).container(environment, "tpu") == TAG
    built = []
    for content in ("one", "one", "two"):
        scripted(cloud, GOOD)
        (source / "src/maskwright/__init__.py").write_text(content)
        assert build(lab, source, "--json") == 0
        built += json.loads(capsys.readouterr().out)["images"]
        tag = built[-1]["image"].rpartition(":")[2]
        where = f"{REPOSITORY}/packages/maskwright/tags/{tag}"
        version = f"{REPOSITORY.partition('/')[2]}/packages/maskwright/versions/{built[-1]['digest']}"
        cloud.resources[where] = {"name": where.partition("/")[2], "version": version}
        assert record.read(environment).container(environment, "tpu") == f"{NAME}@{built[-1]['digest']}"
    assert [one["built"] for one in built] == [True, False, True]
    assert built[1] == built[0] | {"built": False} and built[2]["image"] != built[0]["image"]


def test_own_image_is_not_built(cloud, lab, source, capsys):
    lab.write_text(json.dumps({**LAB, "image": "docker.io/me/mine:1"}))
    assert build(lab, source) == 0
    assert cloud.calls("cloudbuild.*") == [] and "nothing to build" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"has no deploy/Dockerfile"):
        image.pack(str(lab.parent))


def test_image_without_an_environment(cloud, source, tmp_path, monkeypatch, capsys):
    """By docker here, then by Cloud Build; a repository that is not there is named with the command that makes it."""
    docker, log = tmp_path / "bin" / "docker", tmp_path / "log"
    docker.write_text(f'#!/bin/sh\necho "$@" >>{log}\nexit $CODE\n')
    docker.chmod(0o755)
    words = ["image", "maskwright:gpu", "--accelerator", "gpu", "--source", str(source)]
    for code in (0, 1):
        monkeypatch.setenv("CODE", str(code))
        assert run(words) == code
    line = f"build -f {source}/deploy/Dockerfile --build-arg ACCELERATOR=gpu --build-arg LIBTPU=no"
    line += f" --build-arg RUN_AS=maskwright -t maskwright:gpu {source}"
    assert log.read_text().splitlines() == [line] * 2 and "docker ended with 1" in capsys.readouterr().err
    docker.unlink()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(docker.parent))
        assert run(words) == 2
    told = "docker: is not installed, or not on the path. Fix: install it, or use Cloud Build"
    assert told in capsys.readouterr().err
    cloud.put("gs://mine/started", "")
    words = ["image", TAG, "--source", str(source), "--staging", "gs://mine/images"]
    scripted(cloud, GOOD)
    assert run(words) == 0
    assert capsys.readouterr().out.startswith(f"{TAG} sha256:")
    (call,) = cloud.calls("cloudbuild.projects.locations.builds.create")
    assert call["body"]["source"]["storageSource"]["object"].startswith("images/")
    assert call["body"]["logsBucket"] == "gs://mine/images"
    assert run([*words, "--dry-run"]) == 2
    del cloud.resources[REPOSITORY]
    assert run(words) == 2
    assert "gcloud artifacts repositories create lab1 --repository-format=docker" in capsys.readouterr().err
    assert run(["image", "mine:1", *words[2:]]) == 2
    assert "'mine:1' is not an image of Artifact Registry with a tag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        ({}, ["tpu"]),
        ({"group": {"machine_type": "g2-standard-12"}}, ["tpu", "gpu"]),
        ({"slice": None, "group": {"machine_type": "n2-standard-8"}}, ["cpu"]),
        ({"slice": None}, ["cpu"]),
    ],
)
def test_each_kind_of_nodes_has_its_image(cloud, lab, source, parts, kinds):
    lab.write_text(json.dumps({**LAB, **parts}))
    environment = read_environment(str(lab))
    for _ in kinds:
        scripted(cloud, GOOD)
    assert build(lab, source) == 0
    sent = [call["body"]["steps"][0]["args"] for call in cloud.calls("cloudbuild.projects.locations.builds.create")]
    assert [[word for word in words if word.startswith("ACCELERATOR=")] for words in sent] == [
        [f"ACCELERATOR={kind}"] for kind in kinds
    ]
    known = record.read(environment)
    assert sorted(known.images) == sorted(kinds)
    for nodes in environment.hosts.values():
        assert known.container(environment, nodes.computes_on).startswith(f"{NAME}@sha256:")


# ---- the image itself, as far as can be told without Docker ---------------------------------------------------------


def instructions():
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_dockerfile_copies_what_is_packed_and_declares_what_is_passed():
    lines = instructions()
    words = {line.split()[0] for line in lines}
    assert words == {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT"}
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    assert copied <= {*image.FILES, *image.FOLDERS}
    declared = {line.split()[1].partition("=")[0] for line in lines if line.startswith("ARG")}
    words = image.docker_arguments(TAG, ".", image.arguments_of("tpu", libtpu=True))
    passed = {word.partition("=")[0] for word in words if "=" in word}
    assert passed == {"ACCELERATOR", "LIBTPU", "RUN_AS"} and passed < declared
    installs = re.findall(r"pip install [^&;]*", " ".join(lines))
    assert len(installs) == 4 and [line for line in installs if ".lock" in line and "--require-hashes" in line]
    assert all("--require-hashes" in line or "torch==$TORCH" in line or "--no-deps" in line for line in installs)
    assert "ARG RUN_AS=maskwright" in lines and "USER ${RUN_AS}" in lines
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied <= kept
    torch = next(line for line in (ROOT / "scripts" / "install").read_text().splitlines() if "torch_version=" in line)
    assert f"ARG TORCH={torch.partition('=')[2]}" in lines


def test_scripts_of_the_image_are_a_shells(tmp_path):
    for number, line in enumerate(line for line in instructions() if line.startswith("RUN")):
        script = tmp_path / f"{number}.sh"
        script.write_text(line.removeprefix("RUN "))
        subprocess.run(["sh", "-n", str(script)], check=True)


@pytest.fixture
def wrapper(tmp_path):
    """The wrapper of images that do not hold libtpu, with stubs for pip and for the command itself; its variables."""
    tools = tmp_path / "bin"
    tools.mkdir()
    stubs = {
        "python": 'echo "$@" >>"$LOG"; [ ! -e "$FAIL" ] || exit 1\n'
        'while [ "$1" != --target ]; do shift; done\n'
        'echo half >"$2/libtpu"; sleep "$SECONDS_OF_PIP"; echo whole >"$2/libtpu"',
        "maskwright-itself": 'echo "itself $* with ${PYTHONPATH:-nothing}" >>"$LOG"; [ -z "${PYTHONPATH:-}" ] || '
        'grep -q whole "$PYTHONPATH/libtpu"',
    }
    for name, body in stubs.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    shutil.copy(ROOT / "deploy" / "with-libtpu.sh", tools / "maskwright")
    (tmp_path / "lock").write_text("libtpu==1")
    return {
        "PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path), "LOG": str(tmp_path / "log"),
        "FAIL": str(tmp_path / "fail"), "SECONDS_OF_PIP": "0", "MASKWRIGHT_LIBTPU_LOCK": str(tmp_path / "lock"),
    }  # fmt: skip


def start(variables, *words):
    quiet = subprocess.DEVNULL
    return subprocess.Popen(["maskwright", *words], env=variables, stdout=quiet, stderr=quiet)


def test_libtpu_is_fetched_once_and_only_to_compute(wrapper):
    log, fail = Path(wrapper["LOG"]), Path(wrapper["FAIL"])
    for command in ("--version", "--debug doctor", "--debug submit pretrain"):
        assert start(wrapper, *command.split()).wait() == 0
        assert log.read_text() == f"itself {command} with nothing\n"
        log.unlink()
    fail.touch()
    assert start(wrapper, "pretrain", "x").wait() == 75, "the package index may be back at the next start"
    fail.unlink()
    log.unlink()
    assert start(wrapper, "pretrain", "x").wait() == 0 and start(wrapper, "--debug", "finetune", "run.yaml").wait() == 0
    pip, *rest = log.read_text().splitlines()
    assert "--require-hashes" in pip and wrapper["MASKWRIGHT_LIBTPU_LOCK"] in pip
    (libtpu,) = (Path(wrapper["HOME"]) / ".local/share/maskwright/libtpu").iterdir()
    assert rest == [f"itself pretrain x with {libtpu}", f"itself --debug finetune run.yaml with {libtpu}"]


def test_two_first_commands_at_once_do_not_take_libtpu_from_each_other(wrapper):
    libtpu = Path(wrapper["HOME"]) / ".local/share/maskwright/libtpu"
    both = [start(wrapper | {"SECONDS_OF_PIP": seconds}, "pretrain", "x") for seconds in ("0.4", "0.8")]
    assert [process.wait() for process in both] == [0, 0]
    killed = start(wrapper | {"SECONDS_OF_PIP": "5", "MASKWRIGHT_LIBTPU": f"{libtpu}/other"}, "pretrain", "x")
    while not list(libtpu.glob("other/*/libtpu")):
        assert killed.poll() is None
    killed.kill()
    killed.wait()
    assert start(wrapper | {"MASKWRIGHT_LIBTPU": f"{libtpu}/other"}, "pretrain", "x").wait() == 0, (
        "half a folder is none"
    )


def test_all_that_computes_on_a_tpu_gets_libtpu():
    """Whatever is not known to compute nothing, so that a new command is none of the exceptions by accident."""
    script = (ROOT / "deploy" / "with-libtpu.sh").read_text()
    exceptions = set(re.findall(r"[a-z-]+", re.search(r'"" \|(.*?)\) ;;', script, re.DOTALL)[1]))
    commands = {name for names in PANELS.values() for name in names}
    assert exceptions < commands
    assert commands - exceptions == {
        *("compare", "finetune", "plan", "pretrain", "verify-resume"),
    }
