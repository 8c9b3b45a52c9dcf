"""Models of the Hugging Face Hub. `hf://OWNER/NAME@REVISION` is downloaded into the Hub's own cache on this machine,
and `export --push` uploads a model.

Only safetensors, tokenizer files and the JSON of a model and its pooling are ever downloaded: never code, never pickled
weights.
`huggingface_hub` itself finds the token for private models, from `HF_TOKEN` or `hf auth login`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from maskwright.core import storage
from maskwright.core.console import note, say, typed
from maskwright.core.errors import InputError, MaskwrightError, ModelError
from maskwright.core.extras import require
from maskwright.core.hub import Address, as_pinned, full_name, is_hub, read_address, require_name
from maskwright.model.hf.config import read_hf_config
from maskwright.model.hf.other_folders import pickled_weights, without_weights
from maskwright.tasks.models.modules import FIRST, MODULES, PROMPTS
from maskwright.text.tokenizer import FILES
from maskwright.text.vocabulary import has_tokenizer
from maskwright.text.vocabulary_files import files_among

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER = ("tokenizer.json", *FILES)
LOG_IN = "run `hf auth login`, or set HF_TOKEN in the environment"


def pinned(location: str, recorded: str | None = None) -> str:
    """`location` with the commit that it stands for, if it is on the Hub; any other location unchanged.

    `recorded`: where a run that is continued began. That commit stays, even if there are newer ones."""
    if not is_hub(location):
        return location
    return as_pinned(location, recorded) or str(Address(read_address(location).name, os.path.basename(local(location))))


def local(location: str, *, weights: bool = True) -> str:
    """The folder of `location` on this machine. A location on the Hub is downloaded into the Hub's cache unless its
    snapshot is there; any other location is returned unchanged. `weights`: False for the tokenizer alone.

    Raises `InputError` or `ModelError` if it is not available."""
    if not is_hub(location):
        return location
    require("huggingface_hub", location)
    import huggingface_hub as hf
    from huggingface_hub.errors import OfflineModeIsEnabled

    address = read_address(location)
    snapshots = list(_snapshots(address, weights))
    whole = next((folder for folder in snapshots if _is_whole(folder, weights)), None)
    if address.is_commit and whole:
        return whole
    try:
        info = hf.HfApi().model_info(address.name, revision=address.revision)
    except Exception as error:  # huggingface_hub lets errors of its HTTP library through
        if not _unanswered(error):
            raise _not_available(address, error) from None
        if whole is None:
            pickled = [folder for folder in snapshots if weights and _has_only_pickled(os.listdir(folder))]
            raise (without_weights(pickled[0]) if pickled else _not_available(address, error)) from None
        why = "HF_HUB_OFFLINE is set" if isinstance(error, OfflineModeIsEnabled) else "the Hub does not answer"
        note(f"{why}: {address} is commit {os.path.basename(whole)} of the cache on this machine")
        return whole
    names = [sibling.rfilename for sibling in info.siblings or []]
    return _download(Address(address.name, info.sha), address, names, weights)


def _download(commit: Address, asked: Address, names: Sequence[str], weights: bool) -> str:
    """Downloads `config.json` first, by which models with code of their own are refused, and the weights last: a
    snapshot with weights is complete."""
    import huggingface_hub as hf

    def get(name: str, revision: str | None = commit.revision) -> str:
        try:
            return hf.HfApi().hf_hub_download(commit.name, name, revision=revision)
        except Exception as error:  # as above
            raise _not_available(asked, error) from None

    if "config.json" not in names and weights:
        raise ModelError("has no config.json", where=str(asked), fix="name a model that transformers can read")
    if "config.json" in names:
        get("config.json", asked.revision)  # so that the cache knows the branch or tag without network
        folder = os.path.dirname(get("config.json"))
    if weights:
        read_hf_config(folder)
        wanted = WEIGHTS if WEIGHTS in names else INDEX
        if wanted not in names:
            raise _without_safetensors(asked, names)
        say(f"{asked} is commit {commit.revision}")
    for name in TOKENIZER:
        if name in names:
            folder = os.path.dirname(get(name))
    for name in names if MODULES in names and weights else ():  # of sentence-transformers
        if name in (MODULES, FIRST, PROMPTS) or name.endswith("Pooling/config.json"):
            get(name)
    if MODULES not in names and weights:
        with suppress(MaskwrightError):  # leaves a mark in the cache, for `warn_if_untold`
            get(MODULES)
    if not weights:
        if "tokenizer.json" not in names and not files_among(names):
            fix = "use a model that has one, or save the tokenizer with transformers and give its folder"
            raise InputError("has no tokenizer.json", where=str(asked), fix=fix)
        return folder
    for name in _parts(get(INDEX)) if wanted == INDEX else [WEIGHTS]:
        if name not in names:
            raise ModelError(f"its index names {name}, which is absent", where=str(asked), fix="tell the model's owner")
        get(name)
    return folder


def _parts(index: str) -> list[str]:
    """Files that an index names and that may be downloaded. `folder.py` checks the index thoroughly."""
    content = storage.read_json(index)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    names = {name for name in listed.values() if isinstance(name, str)} if isinstance(listed, dict) else set()
    return sorted(name for name in names if name.endswith(".safetensors") and os.path.basename(name) == name)


def _snapshots(address: Address, weights: bool) -> Iterator[str]:
    """The folders of the model in the cache. `transformers` keeps a model under the requested name, which may lack the
    owner."""
    import huggingface_hub as hf

    short = address.name.partition("/")[2]
    for name in (address.name, *([short] if full_name(short) == address.name else [])):
        files = ("config.json",) if weights else TOKENIZER
        paths = (hf.try_to_load_from_cache(name, file, revision=address.revision) for file in files)
        if path := next((path for path in paths if isinstance(path, str)), None):
            yield os.path.dirname(path)


def _is_whole(folder: str, weights: bool) -> bool:
    """Whether a snapshot contains all needed files."""
    index = os.path.join(folder, INDEX)
    has_weights = os.path.isfile(os.path.join(folder, WEIGHTS))
    if not has_weights and os.path.isfile(index):
        parts = _parts(index)
        has_weights = bool(parts) and all(os.path.isfile(os.path.join(folder, name)) for name in parts)
    return has_tokenizer(folder) and (has_weights or not weights)


def _has_only_pickled(names: Sequence[str]) -> bool:
    return bool(pickled_weights(names)) and not {WEIGHTS, INDEX} & {*names}


def _without_safetensors(asked: Address, names: Sequence[str]) -> ModelError:
    pickled = [name for name in pickled_weights(names) if name.startswith(("pytorch_model", "model"))]
    if not pickled:
        return ModelError(f"has no {WEIGHTS}", where=str(asked), fix="name a model that has its weights as safetensors")
    folder = f"models/{asked.name.partition('/')[2]}"
    import_ = typed(["import", "weights", folder, "--to", f"{folder}-safetensors"])
    return ModelError(
        f"has only pickled weights ({pickled[0]}), which can run code when opened and are never downloaded",
        where=str(asked),
        fix="look for a revision with safetensors, often @refs/pr/1; or download it with "
        f"hf download {asked.name} --local-dir {folder}, and {import_}",
    )


def _not_available(asked: Address, error: Exception) -> InputError:
    from huggingface_hub import constants, errors

    where, page = str(asked), f"{constants.ENDPOINT}/{asked.name}"
    copied = f"set HF_HUB_CACHE, if it is in another cache than {constants.HF_HUB_CACHE}; or, "
    copied += f"on a machine with network: hf download {asked.name} --local-dir models/{asked.name.partition('/')[2]}"
    copied += ", then copy the folder here and give it"
    if isinstance(error, errors.GatedRepoError):
        return InputError("is gated by its owner", where=where, fix=f"ask for access on {page}, then {LOG_IN}")
    if isinstance(error, errors.RepositoryNotFoundError):
        fix = f"correct the name; if it is private, {LOG_IN}"
        return InputError("the Hub has no such model, or it is private", where=where, fix=fix)
    if isinstance(error, errors.RevisionNotFoundError):
        fix = f"choose a branch, tag or commit of {page}/commits, or leave @{asked.revision} out"
        return InputError(f"has no revision {asked.revision}", where=where, fix=fix)
    if isinstance(error, errors.OfflineModeIsEnabled):
        what = "HF_HUB_OFFLINE is set, and the cache on this machine does not hold all of it"
        return InputError(what, where=where, fix=f"unset it; {copied}")
    if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError):
        what = f"cannot be stored in {constants.HF_HUB_CACHE}: {error.strerror}"
        return InputError(what, where=where, fix="free disk space, allow writing, or set HF_HOME to another folder")
    if not _unanswered(error):
        return InputError(f"the Hub refuses it: {_reason(error)}", where=where, fix=f"check the token: {LOG_IN}")
    return InputError(f"the Hub does not answer: {_reason(error)}", where=where, fix=f"check the network; {copied}")


def _unanswered(error: Exception) -> bool:
    """Whether the Hub gave no answer, or asked to try again later."""
    response = getattr(error, "response", None)
    return response is None or response.status_code == 429 or response.status_code >= 500


def _reason(error: Exception) -> str:
    """The reason in the words of the server or of the HTTP library, without the token."""
    from huggingface_hub import get_token

    response = getattr(error, "response", None)
    cause = error if response is not None else error.__cause__ or error
    code = getattr(getattr(cause, "response", None), "status_code", None)
    message = " ".join((getattr(cause, "server_message", None) or str(cause) or type(cause).__name__).split()).rstrip(
        "."
    )
    token = get_token()
    return (f"{code} " if code else "") + (message.replace(token, "***") if token else message)


# ---- pushing ---------------------------------------------------------------------------------------------------------


def require_push(name: str) -> None:
    """Raises `InputError` if `push` could not even begin. Called before an export, which lasts longer."""
    require_name(name, "--push")
    require("huggingface_hub", "--push")
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise InputError("HF_HUB_OFFLINE is set", where="--push", fix="unset it, or leave --push out")
    if get_token() is None:
        raise InputError("there is no token to write with", where="--push", fix=LOG_IN)


def push(folder: str, name: str, *, public: bool) -> str:
    """Uploads a verified folder in one commit, to a new private (or `public`) repository or to one that exists, whose
    visibility stays. Returns its address. Raises `MaskwrightError`; the folder stays."""
    import huggingface_hub as hf

    files = [os.path.join(parent, file) for parent, _, files in os.walk(folder) for file in sorted(files)]
    try:
        api = hf.HfApi()
        url = str(api.create_repo(name, private=not public, exist_ok=True))
        adding = [hf.CommitOperationAdd(os.path.relpath(path, folder).replace(os.sep, "/"), path) for path in files]
        commit = api.create_commit(name, adding, commit_message="Upload a model that maskwright exported")
    except Exception as error:  # also ValueError, for a card that the Hub refuses
        fix = f"the verified model stays in {folder}; check the token ({LOG_IN}) and that it may write there, then "
        fix += f"hf upload {name} {folder} ." + ("" if public else " --private")
        raise MaskwrightError(f"cannot be pushed: {_reason(error)}", where=name, fix=fix) from None
    say(f"{url}: commit {commit.oid}")
    return url
