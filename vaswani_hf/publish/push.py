"""Pushes a finished checkpoint to the Hub in one commit, downloads the commit again, and compares the
downloaded files with the pushed files.
"""

import filecmp
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelCard,
    ModelInfo,
    SpaceInfo,
    get_token,
    snapshot_download,
)
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects, validate_repo_id
from transformers import GenerationConfig

from ..checkpoint.files import (
    CARD_FILE,
    CHECKPOINT_FILES,
    GENERATION_FILE,
    HANDLER_FILE,
    LICENSE_FILE,
    RECIPE_FILE,
    RECORD_FILES,
    REQUIREMENTS_FILE,
    TOKENIZER_FILES,
    UNCHANGED_RECORDS,
    recipe_file,
    weight_files,
)
from ..checkpoint.hub import HubError, InvalidHubValueError, explained, has_token, sentence_of, with_retries
from ..checkpoint.loading import KINDS, check_config, load_model
from ..checkpoint.results import Results, read_results, write_results
from ..checkpoint.tokenizers import load_tokenizers
from ..model import configuration_vaswani
from ..model.configuration_vaswani import TARGET_FOLDER
from ..model.errors_vaswani import InvalidValueError
from ..model.extension_vaswani import ENTRY, source_for_checkpoint
from ..model.modeling_vaswani import FromRepository
from ..model.translator_vaswani import check_tokenizers
from ..recipe.published import published_yaml
from ..translation.translator import Translator
from ..version import minimum_versions
from .license_text import license_text
from .model_card import check_card, model_card, pipeline_of

# Patterns of files. If a file in the repository matches a pattern and the new checkpoint does not contain
# this file, a push deletes the file.
REPLACED_FILES = (
    *CHECKPOINT_FILES,
    RECIPE_FILE,
    *UNCHANGED_RECORDS,
    *(path.name for path in Path(configuration_vaswani.__file__).parent.glob("*_vaswani.py")),
    f"{ENTRY}.py",
)
# The keys of tokenizer_config.json that are not pushed. In these keys, transformers stores the place from
# which the tokenizer was loaded, such as a local path.
_ORIGIN_OF_TOKENIZER = ("name_or_path", "is_local", "local_files_only")
# The texts for which `fingerprint` computes tokens and logits.
_SAMPLES = ("The model reads the whole sentence at once.", "Ärger, naïve: 3.14 €!", "日本語 и русский")


@dataclass(frozen=True)
class Destination:
    """The repository and the revision of a push. The docstring of `push` explains the fields."""

    repo_id: str
    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    tag: str | None = None
    token: str | bool | None = field(default=None, repr=False)
    repo_type: Literal["model", "space"] = "model"
    space_sdk: Literal["gradio", "static"] | None = None

    @property
    def is_pull_request(self) -> bool:
        """True if the push goes to a pull request. A pull request needs no write permission for the
        repository, because every user may open a pull request.
        """
        return self.create_pr or (self.revision or "").startswith("refs/pr/")


def push(
    checkpoint: str | Path,
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    create_pr: bool = False,
    tag: str | None = None,
    license: str | None = None,
    base_model: str | None = None,
    commit_message: str = "Push a checkpoint of vaswani_hf",
    token: str | bool | None = None,
) -> str:
    """Push a checkpoint in one commit. Download the commit again, and compare the downloaded files with the
    checkpoint.

    The repository is created if it does not exist. Before the push, the checkpoint and the permissions of the
    user are checked. huggingface_hub validates the metadata of the card before the upload. If the upload
    fails, the branch does not change. A failed push can be repeated. The folder of the checkpoint does not
    change.

    Example:
        >>> from vaswani_hf import push
        >>> push("checkpoints/numbers", "user/numbers", private=True)  # doctest: +SKIP

    Args:
        checkpoint (str or Path): A folder that `vaswani train` or `save_pretrained` has written, with
            tokenizers. If the folder has a README.md that `vaswani import` did not write, this file is the
            model card. If the folder has no such file, the card is written from the files of the run, such as
            recipe.yaml and results.json.
        repository (str): user/name.
        private (bool): If True, create the repository as a private repository. If the repository already
            exists and is public, an error is raised.
        revision (str, optional): A branch or refs/pr/N. The default is main. A branch that does not exist is
            created.
        create_pr (bool): Open a pull request instead of changing the branch.
        tag (str, optional): The name of a new tag for the commit.
        license (str, optional): The licence that the model card states, as an identifier of the Hub such as
            "cc-by-4.0".
        base_model (str, optional): The repository of the model that the training started from. The model card
            names the base model.
        commit_message (str): The title of the commit.
        token (str or bool, optional): An access token. The default is HF_TOKEN, or the token that `hf auth
            login` has stored.

    Returns:
        str: The address of the commit, or of the pull request.

    Raises:
        HubError: If an argument is invalid, if the checkpoint is damaged or incomplete, if the push is
            refused or fails, or if the downloaded files differ from the pushed files.
    """
    with only_hub_errors(), TemporaryDirectory() as name:
        check_config(Path(checkpoint), checkpoint, tuple(KINDS))
        validate_repo_id(repository)
        to = Destination(repository, private, revision, create_pr, tag, token)
        # Check the token before the model is loaded, because the model takes minutes to load.
        check_token(to)
        expected = fingerprint(Path(checkpoint))
        to = check_destination(to)
        staged = Path(name)
        stage_repository(Path(checkpoint), staged, to.repo_id, license=license, base_model=base_model)

        def find_differences(downloaded: Path) -> list[str]:
            arrived = fingerprint(downloaded)
            return [name for name, output in expected.items() if output != arrived[name]]

        checked = "same logits, tokens and translation"
        return send(to, staged, commit_message, checked=checked, find_differences=find_differences)


def send(
    to: Destination,
    staged: Path,
    commit_message: str,
    *,
    replaced: tuple[str, ...] = REPLACED_FILES,
    checked: str = "same files",
    find_differences: Callable[[Path], list[str]] = lambda downloaded: [],
) -> str:
    """Push the folder `staged` in one commit, download the commit again, compare the files, and create the
    tag. Return the address of the commit or of the pull request.

    `find_differences` receives the folder of the downloaded files, and returns the names of other
    differences, such as different logits. If there are no differences, the function prints `checked`, for
    example "same files".
    """
    commit, is_new = upload(to, staged, commit_message, replaced)
    url = commit.pr_url or commit.commit_url
    print(f"{'pushed to' if is_new else 'nothing has changed since'} {url}", flush=True)
    place = f" to {commit.pr_revision}" if to.create_pr else ""
    again = f"repeat the push{place} to check the files again; the repeated push creates no second commit."
    with only_hub_errors(f"The commit exists ({url}); {again}"):
        _check_arrived(to, commit, staged, find_differences)
        print(f"checked: downloaded at {commit.oid[:7]}, {checked}", flush=True)
        if to.tag is not None:
            with_retries(
                HfApi(token=to.token).create_tag,
                to.repo_id,
                tag=to.tag,
                revision=commit.oid,
                repo_type=to.repo_type,
            )
            print(f"tagged {to.tag}", flush=True)
    return url


@contextmanager
def only_hub_errors(remark: str = "") -> Iterator[None]:
    """Context manager that converts a `ValueError` to a `HubError` and adds `remark` to the message, so that
    callers need to catch only `HubError`.
    """
    try:
        with explained():
            yield
    except (HubError, ValueError) as error:
        kind = InvalidHubValueError if isinstance(error, InvalidValueError) else HubError
        raise kind(f"{sentence_of(error)} {remark}".rstrip()) from error


def push_pipeline(pipeline: Any, repo_id: str, **kwargs: Any) -> str:
    """Push a translation pipeline with `push`, together with the recipe and the results of the run that
    trained the model.

    `kwargs` are `max_shard_size` and the arguments of `push`.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        pipeline.save_pretrained(folder, max_shard_size=kwargs.pop("max_shard_size", "50GB"))
        # Write a new model card only if the caller gives a licence or a base model, else keep the existing
        # model card.
        keeps_card = not (kwargs.get("license") or kwargs.get("base_model"))
        with explained():
            _copy_record(pipeline.model, folder, repo_id, keeps_card=keeps_card, token=kwargs.get("token"))
        return push(folder, repo_id, **kwargs)


def _copy_record(
    model: FromRepository, folder: Path, repo_id: str, *, keeps_card: bool, token: str | bool | None
) -> None:
    """Copy the files of a run, such as recipe.yaml and results.json, from the folder that the model was
    loaded from. If the weights differ from the weights that the run wrote, copy only the recipe, and record
    in results.json that the weights have changed.
    """
    origin = model.origin
    if origin is None:
        return
    name: str = model.name_or_path  # type: ignore[attr-defined]
    is_on_hub = not os.path.isdir(name)
    if is_on_hub:
        # Ignore a missing repository, because a user may have deleted the repository after the model was
        # loaded.
        with suppress(RepositoryNotFoundError):
            snapshot_download(
                name,
                revision=origin.name,
                cache_dir=origin.parents[2],
                allow_patterns=list(RECORD_FILES),
                token=token,
            )
    recipe = recipe_file(origin)
    if recipe is not None:
        shutil.copy(recipe, folder)
    weights = [path.name for path in folder.glob("model*.safetensors")]
    same, _, _ = filecmp.cmpfiles(origin, folder, weights, shallow=False)
    if len(same) < len(weights):
        if recipe is not None:
            write_results(folder, Results(weights_changed=True))
        return
    for file in RECORD_FILES:
        if (origin / file).is_file() and (keeps_card or file != CARD_FILE):
            shutil.copy(origin / file, folder)
    card = folder / CARD_FILE
    if is_on_hub and card.exists():
        # Replace the name of the repository, so that the code examples of the card load the new repository.
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", repo_id, card.read_text(encoding="utf-8"))
        card.write_text(text, encoding="utf-8")


def stage_repository(
    folder: Path, staged: Path, repo_id: str, *, license: str | None = None, base_model: str | None = None
) -> None:
    """Write all files of the future commit into the folder `staged`. Weight files are linked instead of
    copied if possible.

    Optimizer states, logs and other files in the folder of the checkpoint are left out.
    """
    # Save the config and the model code again, because an older checkpoint may not have the code files.
    model_class = KINDS[check_config(folder, folder, tuple(KINDS))].model_class
    config = model_class.config_class.from_pretrained(folder)
    for kind in config.user_classes():
        # Raise an error for a class that cannot be published, because `save_pretrained` would only log a
        # warning.
        source_for_checkpoint(kind)
    config.save_pretrained(staged)
    if not (folder / GENERATION_FILE).is_file():
        GenerationConfig.from_model_config(config).save_pretrained(staged)
    for name in (GENERATION_FILE, *UNCHANGED_RECORDS, *weight_files(folder)):
        if (folder / name).is_file():
            link_file(folder / name, staged / name)
    source_tokenizer, target_tokenizer = load_tokenizers(folder)
    _stage_tokenizer(folder, staged)
    if target_tokenizer is not source_tokenizer:
        (staged / TARGET_FOLDER).mkdir()
        _stage_tokenizer(folder / TARGET_FOLDER, staged / TARGET_FOLDER)
    recipe = published_yaml(folder, license)
    if recipe is not None:
        (staged / RECIPE_FILE).write_text(recipe, encoding="utf-8")
    _stage_card(folder, staged, repo_id, license=license, base_model=base_model)
    _stage_license(folder, staged)
    _stage_handler(folder, staged)
    refuse_tokens(staged)


def _stage_tokenizer(folder: Path, staged: Path) -> None:
    for name in TOKENIZER_FILES:
        if not (folder / name).is_file():
            continue
        if name != "tokenizer_config.json":
            link_file(folder / name, staged / name)
            continue
        settings = json.loads((folder / name).read_text(encoding="utf-8"))
        settings = {key: value for key, value in settings.items() if key not in _ORIGIN_OF_TOKENIZER}
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (staged / name).write_text(text, encoding="utf-8")


def _stage_card(folder: Path, staged: Path, repo_id: str, **facts: str | None) -> None:
    path = folder / CARD_FILE
    if not path.is_file() or _is_card_of_import(folder):
        (staged / CARD_FILE).write_text(str(model_card(folder, repo_id, **facts)), encoding="utf-8")
        return
    for name, value in facts.items():
        if value is not None:
            raise InvalidValueError(
                f"`{name}` is for a new model card, but is {value!r}, and '{path}' is used unchanged; write "
                f"the value into '{path}', or move the file away."
            )
    check_card(path)
    link_file(path, staged / CARD_FILE)
    print("the model card is the README.md of the checkpoint, without changes", flush=True)


def _stage_license(folder: Path, staged: Path) -> None:
    """Link the LICENSE file of the checkpoint folder, or write a new LICENSE file if the folder has none."""
    if (folder / LICENSE_FILE).is_file():
        link_file(folder / LICENSE_FILE, staged / LICENSE_FILE)
        return
    text = license_text(ModelCard.load(staged / CARD_FILE).data.to_dict())
    (staged / LICENSE_FILE).write_text(text, encoding="utf-8")


def _stage_handler(folder: Path, staged: Path) -> None:
    """Write the handler for Inference Endpoints and its requirements. If the folder of the checkpoint has a
    handler.py, use this handler.py and the requirements.txt of the folder instead. If no pipeline can load
    the model, for example a parser, write no handler.
    """
    if (folder / HANDLER_FILE).is_file():
        names = [name for name in (HANDLER_FILE, REQUIREMENTS_FILE) if (folder / name).is_file()]
        for name in names:
            link_file(folder / name, staged / name)
    elif pipeline_of(folder) is not None:
        shutil.copyfile(Path(__file__).with_name(HANDLER_FILE), staged / HANDLER_FILE)
        (staged / REQUIREMENTS_FILE).write_text(minimum_versions("torch", "transformers"), encoding="utf-8")


def _is_card_of_import(folder: Path) -> bool:
    """Return True if README.md is the card that `vaswani import` wrote.

    A push replaces the card of an import by a card for the repository, because the code examples in the card
    of an import load the local folder.
    """
    origin = read_results(folder).origin
    if origin is None or origin.imported_as is None:
        return False
    text = (folder / CARD_FILE).read_text(encoding="utf-8")
    return text == str(model_card(folder, origin.imported_as))


def link_file(path: Path, link: Path) -> None:
    """Create a link to a file, or copy the file if links cannot be created."""
    try:
        link.symlink_to(path.absolute())
    except OSError:
        # If the link cannot be created, copy the file, because on Windows only administrators can create
        # links.
        shutil.copyfile(path, link)


def refuse_tokens(folder: Path) -> None:
    """Raise an error if a text file in the folder contains an access token of the Hub."""
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".md", ".yaml", ".json", ".jsonl", ".py"):
            continue
        if has_token(path.read_text(encoding="utf-8", errors="replace")):
            name = path.relative_to(folder).as_posix()
            raise ValueError(
                f"{name} must not contain an access token of the Hub, but contains one; remove the access "
                "token, make a new access token and push again."
            )


def check_token(destination: Destination) -> None:
    """Raise a `HubError` if there is no access token, because huggingface_hub would report the missing token
    only at its first request to the Hub.
    """
    if not isinstance(destination.token, str) and (destination.token is False or get_token() is None):
        raise HubError(
            "A push needs an access token with write permission, but there is no token; log in with `hf "
            "auth login` or set HF_TOKEN."
        )


def check_destination(destination: Destination) -> Destination:
    """If `repo_id` has no user name, add the name of the user. Raise a `HubError` if a push is not possible.

    The check creates no repository and no branch. Therefore a training run can check the destination before
    the training.
    """
    check_token(destination)
    with explained():
        api = HfApi(token=destination.token)
        user = with_retries(api.whoami)
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise HubError(
                f"The token of {user['name']} may read but not write; make a token with write permission at "
                f"{api.endpoint}/settings/tokens, and log in with `hf auth login` or set HF_TOKEN."
            )
        namespace, _, name = destination.repo_id.rpartition("/")
        destination = replace(destination, repo_id=f"{namespace or user['name']}/{name}")
        try:
            info: Any = with_retries(api.repo_info, destination.repo_id, repo_type=destination.repo_type)
        except RepositoryNotFoundError:
            namespaces = [user["name"], *(group["name"] for group in user.get("orgs") or [])]
            if namespace and namespace not in namespaces:
                raise HubError(
                    f"There is no repository '{namespace}/{name}', and the token of {user['name']} cannot "
                    f"make a repository for '{namespace}'; push to '{user['name']}/{name}', or use a token "
                    f"of '{namespace}'."
                ) from None
            if destination.is_pull_request:
                raise
        else:
            _check_repository(api, destination, info)
    return destination


def _check_repository(api: HfApi, destination: Destination, info: ModelInfo | SpaceInfo) -> None:
    repo_id = destination.repo_id
    revision = destination.revision
    if destination.private and not info.private:
        raise InvalidHubValueError(
            f"`private` is for a new repository, but '{repo_id}' exists and is public; leave `private` out, "
            f"or make the repository private at {api.endpoint}/{repo_id}/settings."
        )
    if not destination.is_pull_request:
        with_retries(api.auth_check, repo_id, repo_type=destination.repo_type, write=True)
    refs = with_retries(
        api.list_repo_refs, repo_id, repo_type=destination.repo_type, include_pull_requests=True
    )
    tags = {ref.name for ref in refs.tags}
    branches = {ref.name for ref in refs.branches}
    pull_requests = {ref.ref for ref in refs.pull_requests or []}
    if destination.tag in tags | branches:
        raise InvalidHubValueError(
            f"`tag` must be new, but '{repo_id}' has a tag or branch '{destination.tag}'; take another name."
        )
    is_missing = (revision or "").startswith("refs/pr/") and revision not in pull_requests
    if revision in tags or is_missing:
        raise InvalidHubValueError(
            f"`revision` must be a branch or a pull request that '{repo_id}' has, but is '{revision}'."
        )


def upload(
    destination: Destination, folder: Path, message: str, replaced: tuple[str, ...] = REPLACED_FILES
) -> tuple[CommitInfo, bool]:
    """Push a folder in one commit. Create the repository and the branch if they do not exist.

    The commit deletes files of the repository that match `replaced` but are not in the folder. Return the
    commit, and True if the commit is new. If nothing has changed, return the newest commit and False.
    """
    api = HfApi(token=destination.token)
    repo_id = destination.repo_id
    repo_type = destination.repo_type
    revision = destination.revision
    if not destination.is_pull_request:
        with_retries(
            api.create_repo,
            repo_id,
            repo_type=repo_type,
            space_sdk=destination.space_sdk,
            private=destination.private or None,
            exist_ok=True,
        )
        if revision is not None:
            with_retries(api.create_branch, repo_id, repo_type=repo_type, branch=revision, exist_ok=True)
    before = with_retries(api.repo_info, repo_id, repo_type=repo_type, revision=revision).sha
    commit_once = partial(_commit, api, destination, folder, message, replaced)
    # Do not retry a request that opens a pull request. If only the answer of the Hub is lost, a second
    # request opens a second pull request.
    commit = commit_once() if destination.create_pr else with_retries(commit_once)
    return commit, commit.oid != before


def _commit(
    api: HfApi, destination: Destination, folder: Path, message: str, replaced: tuple[str, ...]
) -> CommitInfo:
    # List the files of the repository before each try, because an earlier try may have changed the files. A
    # commit can succeed even if the answer of the Hub is lost.
    info: Any = api.repo_info(
        destination.repo_id, repo_type=destination.repo_type, revision=destination.revision
    )
    there = [file.rfilename for file in info.siblings or []]
    files = _files_in(folder)
    additions = [CommitOperationAdd(name, folder / name) for name in files]
    deletions = [
        CommitOperationDelete(name)
        for name in filter_repo_objects(there, allow_patterns=list(replaced))
        if name not in files
    ]
    # Do not use `upload_folder`, because `upload_folder` would split a failed commit into several commits and
    # would make every pull request a draft.
    return api.create_commit(
        destination.repo_id,
        [*additions, *deletions],
        commit_message=message,
        repo_type=destination.repo_type,
        revision=destination.revision,
        create_pr=destination.create_pr,
    )


def _files_in(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def _check_arrived(
    destination: Destination,
    commit: CommitInfo,
    staged: Path,
    find_differences: Callable[[Path], list[str]],
) -> None:
    files = _files_in(staged)
    with TemporaryDirectory() as cache:
        downloaded = with_retries(
            snapshot_download,
            destination.repo_id,
            revision=commit.pr_revision or commit.oid,
            cache_dir=cache,
            repo_type=destination.repo_type,
            allow_patterns=files,
            token=destination.token,
        )
        _, different, missing = filecmp.cmpfiles(staged, downloaded, files, shallow=False)
        different += missing
        if not different:
            different = find_differences(Path(downloaded))
        if different:
            raise HubError(f"The files that were downloaded after the push differ in {', '.join(different)}.")


@torch.inference_mode()
def fingerprint(folder: Path) -> dict[str, Any]:
    """Return the tokens and logits of sample texts, and a translation if the model translates. Two identical
    checkpoints have the same fingerprint.
    """
    model, tokenizers = load_model(folder, kinds=tuple(KINDS)), load_tokenizers(folder)
    check_tokenizers(model, *tokenizers, str(folder))
    translator = Translator(model, *tokenizers) if model.config.is_encoder_decoder else None
    longest = None
    if translator:
        longest = translator.max_length
    elif model.config.position_embedding == "learned":
        longest = model.config.max_position_embeddings
    tokens = []
    logits = []
    for text in _SAMPLES:
        source, target = (
            tokenizer(text, return_tensors="pt")["input_ids"][:, :longest] for tokenizer in tokenizers
        )
        tokens.append((source.tolist(), target.tolist()))
        target_ids = {"decoder_input_ids": target} if translator else {}
        logits.append(model(input_ids=source, **target_ids).logits)
    if not all(of_text.isfinite().all() for of_text in logits):
        raise ValueError(
            f"The model in '{folder}' must compute finite logits, but some logits are infinite or NaN; push "
            "an earlier checkpoint, or train again with a smaller learning rate."
        )
    translation = list(translator.translate(_SAMPLES[:1])) if translator else None
    return {
        "tokens": tokens,
        "logits": [of_text.tolist() for of_text in logits],
        "the translation": translation,
    }
