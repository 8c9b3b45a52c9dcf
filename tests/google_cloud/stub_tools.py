"""What a host's scripts call, played by this file under many names: it writes a journal and does a simple thing that
really is one. `mount` makes a link to a folder, `mkfs.ext4` labels one, a "container" of `docker` is the agent as a
process of this machine. State lies in the folder SANDBOX. KILL_AT=n kills the whole process group at the n-th call."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

BOX = Path(os.environ["SANDBOX"])
DOCKER = BOX / "docker"


def state(name: str) -> str:
    path = BOX / name
    return path.read_text().strip() if path.exists() else ""


def journal(words: list[str]) -> None:
    with open(BOX / "journal", "a") as file:
        file.write(json.dumps(words) + "\n")
    count = len((BOX / "journal").read_text().splitlines())
    if str(count) == os.environ.get("KILL_AT"):
        os.killpg(os.getpgrp(), signal.SIGKILL)


# ---- file systems: a device is a file that names a folder, `formatted` in it is the file system's label --------------


def backing(device: str) -> Path:
    """A large one is for the real mkfs, and its files lie elsewhere."""
    large = os.path.getsize(device) > 1 << 20
    return BOX / "disks" / "large" if large else Path(Path(device).read_text().strip())


def mount(words: list[str]) -> int:
    source, target = words[-2], Path(words[-1])
    if "--bind" in words or "remount,exec" in words:
        return 0
    if "nfs" in words:
        folder = BOX / "nfs"
        if state("nfs-is-down"):
            return 32
    else:
        folder = backing(words[-2])
        if not (folder / "formatted").exists():
            print(f"mount: {target}: wrong fs type, bad superblock on {source}", file=sys.stderr)
            return 32
        folder = folder / "files"
    folder.mkdir(parents=True, exist_ok=True)
    target.rmdir()
    target.symlink_to(folder)
    return 0


def umount(words: list[str]) -> int:
    target = Path(words[-1])
    if not target.is_symlink():
        return 32
    target.unlink()
    target.mkdir()
    return 0


def mountpoint(words: list[str]) -> int:
    return 0 if Path(words[-1]).is_symlink() else 1


def blkid(words: list[str]) -> int:
    label = backing(words[-1]) / "formatted"
    if not label.exists():
        return 2
    print(label.read_text().strip())
    return 0


def mkfs(words: list[str]) -> int:
    folder = backing(words[-1])
    if (folder / "formatted").exists():
        print("mkfs.ext4: contains a file system", file=sys.stderr)
        return 1
    (folder / "files" / "lost+found").mkdir(parents=True)
    label = words[words.index("-L") + 1] if "-L" in words else ""
    (folder / "formatted").write_text(label)
    return 0


def wipefs(words: list[str]) -> int:
    if (backing(words[-1]) / "formatted").exists():
        print("DEVICE OFFSET TYPE UUID LABEL")
    return 0


def gcloud(words: list[str]) -> int:
    """The real one. KILL_IN=rsync kills all of it after KILL_AFTER seconds of that."""
    if os.environ.get("KILL_IN", "none") in words and os.fork() == 0:
        time.sleep(float(os.environ["KILL_AFTER"]))
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.environ["PATH"] += ":/usr/bin:/bin"  # what gcloud itself needs is not what the script needs
    os.execv(state("gcloud"), [state("gcloud"), *words])


# ---- docker ----------------------------------------------------------------------------------------------------------


def docker(words: list[str]) -> int:
    config = None
    if words[0] == "--config":
        config, words = Path(words[1]), words[2:]
    command, rest = words[0], words[1:]
    if command == "login":
        assert config and "--password-stdin" in rest
        (config / "config.json").write_text(json.dumps({"auth": sys.stdin.read()}))
        return 0
    if command == "pull":
        assert config
        if "pkg.dev" in rest[-1] and "fake-token" not in (config / "config.json").read_text():
            print("denied: Unauthenticated request", file=sys.stderr)
            return 1
        return 1 if state("no-image") else 0
    if command == "image":
        name, _, digest = rest[-1].partition("@")
        repository = name if digest else name.rpartition(":")[0]
        print(f"{repository}@{digest or state('digest') or 'sha256:' + '1' * 64}")
        return 0
    return {
        "info": lambda _: 0,
        "run": run,
        "wait": wait,
        "inspect": inspect,
        "stop": stop,
        "rm": remove,
        "logs": logs,
    }[command](rest)


def options_of(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Options with their values, and the image with its words."""
    flags, found = {"--detach", "--init", "--privileged", "--rm"}, {}
    while words[0].startswith("--"):
        size = 1 if words[0] in flags else 2
        found.setdefault(words[0], []).append(words[1] if size == 2 else "")
        words = words[size:]
    return found, words


def run(words: list[str]) -> int:
    options, (_, *arguments) = options_of(words)
    if "--rm" in options:
        print(f"maskwright {state('version')}")
        return 0
    if options["--log-driver"] == ["gcplogs"] and state("no-gcplogs"):
        print("docker: Error response from daemon: failed to initialize logging driver: no permission", file=sys.stderr)
        return 125
    folder = DOCKER / options["--name"][0]
    if folder.exists():
        print("docker: Conflict. The container name is already in use", file=sys.stderr)
        return 125
    folder.mkdir(parents=True)
    (folder / "label").write_text(options["--label"][0].partition("=")[2])
    variables = dict(pair.partition("=")[::2] for pair in options.get("--env", []))
    inside = {to: host for host, to in (text.split(":")[:2] for text in options.get("--volume", []))}
    variables = {key: inside.get(value, value) for key, value in variables.items()}
    variables |= json.loads(state("variables"))
    if os.fork() == 0:
        os.setsid()
        with open(folder / "log", "ab") as log:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            os.closerange(3, 64)
            process = subprocess.Popen(
                [sys.executable, "-m", "maskwright", *arguments, "--poll-seconds=0.3"], env=variables, cwd=BOX
            )
            (folder / "pid.new").write_text(str(process.pid))
            (folder / "pid.new").rename(folder / "pid")
            code = process.wait()
            (folder / "exit.new").write_text(str(128 - code if code < 0 else code))
            (folder / "exit.new").rename(folder / "exit")
            os._exit(0)
    while not (folder / "pid").exists():
        time.sleep(0.01)
    return 0


def wait(words: list[str]) -> int:
    while not (DOCKER / words[0] / "exit").exists():
        time.sleep(0.05)
    print((DOCKER / words[0] / "exit").read_text())
    return 0


def inspect(words: list[str]) -> int:
    folder = DOCKER / words[-1]
    if not folder.exists():
        print("Error: No such object", file=sys.stderr)
        return 1
    print("false" if (folder / "exit").exists() else "true", (folder / "label").read_text())
    return 0


def stop(words: list[str], number: int = signal.SIGTERM) -> int:
    folder, until = DOCKER / words[-1], time.monotonic() + float(words[1])
    if not folder.exists():
        return 1
    if not (folder / "exit").exists():
        os.kill(int((folder / "pid").read_text()), number)
    while not (folder / "exit").exists():
        if time.monotonic() > until:
            return stop(["--time", "10", words[-1]], signal.SIGKILL)
        time.sleep(0.02)
    return 0


def remove(words: list[str]) -> int:
    if not (DOCKER / words[-1]).exists():
        return 1
    stop(["--time", "10", words[-1]], signal.SIGKILL)
    shutil.rmtree(DOCKER / words[-1])
    return 0


def logs(words: list[str]) -> int:
    print("\n".join((DOCKER / words[-1] / "log").read_text().splitlines()[-int(words[1]) :]))
    return 0


def apt_get(words: list[str]) -> int:
    """Installs by making the stub of the package's tool, where the network reaches a mirror."""
    tool = {"docker.io": "docker", "nfs-common": "mount.nfs"}.get(words[-1])
    if "install" in words and tool:
        if state("no-mirror"):
            return 100
        shutil.copy(BOX / "bin" / "mount", BOX / "bin" / tool)
    return 0


def main() -> int:
    name = os.path.basename(sys.argv[1])
    words = sys.argv[2:]
    journal([name, *words])
    tools = {
        "mount": mount,
        "umount": umount,
        "mountpoint": mountpoint,
        "blkid": blkid,
        "mkfs.ext4": mkfs,
        "wipefs": wipefs,
    }
    tools |= {"docker": docker, "apt-get": apt_get, "gcloud": gcloud}
    return tools[name](words) if name in tools else 0


if __name__ == "__main__":
    sys.exit(main())
