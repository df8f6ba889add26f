"""Pushes a finished checkpoint to the Hub in one commit, downloads the commit again, and compares the
downloaded files with the pushed files.

`push` first runs the checks of destination.py, and then staging.py writes the files into a temporary folder.
Then `push` uploads the files, downloads the commit, and compares the downloaded files with the uploaded
files.
"""

import filecmp
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    snapshot_download,
)
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id
from safetensors.torch import load_file

from ..checkpoint.files import (
    CARD_FILE,
    CHECKPOINT_FILES,
    INDEX_FILE,
    RECIPE_FILE,
    RECORD_FILES,
    UNCHANGED_RECORDS,
    recipe_file,
    weight_files,
)
from ..checkpoint.hub import HubError, InvalidHubValueError, explained, sentence_of, with_retries
from ..checkpoint.loading import KINDS, check_config, load_model
from ..checkpoint.results import Results, write_results
from ..checkpoint.tokenizers import load_tokenizers
from ..messages import say
from ..model.errors_vaswani import InvalidValueError
from ..model.pretrained_vaswani import VaswaniPreTrainedModel
from ..model.tokenizing_vaswani import check_tokenizers
from ..settings.data import last_part
from ..translation.translator import Translator
from .destination import Destination, check_destination, check_token
from .staging import stage_repository

# Names and patterns of files that a push deletes from the repository if the new checkpoint does not contain
# the files. A push deletes no code files, because a user can have written a code file, and transformers
# ignores code files that the new checkpoint does not need.
REPLACED_FILES: tuple[str, ...] = (*CHECKPOINT_FILES, RECIPE_FILE, *UNCHANGED_RECORDS)
# The texts for which `fingerprint` computes tokens and logits.
_SAMPLES = ("The model reads the whole sentence at once.", "Ärger, naïve: 3.14 €!", "日本語 и русский")


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
    fails, the branch does not change. A failed push can be repeated. `push` does not change files in the
    folder of the checkpoint.

    Example:
        >>> from vaswani_hf import push
        >>> push("checkpoints/numbers", "user/numbers", private=True)  # doctest: +SKIP

    Args:
        checkpoint (str or Path): A folder that `vaswani train` or `save_pretrained` has written, with
            tokenizers. If the folder has a README.md that `vaswani import` did not write, this file is the
            model card. If README.md is missing or comes from `vaswani import`, `push` writes the card from
            the files of the run, such as recipe.yaml and results.json.
        repository (str): The repository on the Hub, as user/name.
        private (bool): If True, create the repository as a private repository. `private=True` raises an error
            for an existing public repository.
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
        # 1. Check the arguments, the checkpoint and the permissions. Compute the outputs of the checkpoint.
        folder = Path(checkpoint)
        check_config(folder, checkpoint, tuple(KINDS))
        validate_repo_id(repository)
        to = Destination(repository, private, revision=revision, create_pr=create_pr, tag=tag, token=token)
        # Check the access token before the slow function `fingerprint`, because `fingerprint` loads the
        # model.
        check_token(to)
        expected = fingerprint(folder)
        to = check_destination(to)

        # 2. Write all files of the commit into a temporary folder.
        staged = Path(name)
        stage_repository(folder, staged, to.repo_id, license=license, base_model=base_model)

        # 3. Upload the files, download the commit again, and compare the files and the outputs.
        return commit_and_check(
            to,
            staged,
            commit_message,
            checked="same logits, tokens and translation",
            find_differences=partial(_different_outputs, expected),
        )


def _different_outputs(expected: dict[str, Any], downloaded: Path) -> list[str]:
    """Compare a downloaded checkpoint with the fingerprint `expected`, and return the names of the outputs
    that differ.
    """
    arrived = fingerprint(downloaded)
    return [name for name, output in expected.items() if output != arrived[name]]


def commit_and_check(
    to: Destination,
    staged: Path,
    commit_message: str,
    *,
    replaced: tuple[str, ...] = REPLACED_FILES,
    checked: str = "same files",
    find_differences: Callable[[Path], list[str]] = lambda downloaded: [],
) -> str:
    """Push the folder `staged` in one commit, download the commit again, compare the files, and add the tag.

    `find_differences(downloaded)` returns the names of the model outputs that differ from the outputs before
    the push. If no file and no output differs, the function prints the text in the argument `checked`. Return
    the address of the commit or of the pull request.
    """
    commit, is_new = commit_folder(to, staged, commit_message, replaced)
    url = commit.pr_url or commit.commit_url
    say(f"{'pushed to' if is_new else 'nothing has changed since'} {url}", is_important=True)
    place = f" to {commit.pr_revision}" if to.create_pr else ""
    again = f"repeat the push{place} to check the files again; the repeated push creates no second commit."
    with only_hub_errors(f"The commit exists ({url}); {again}"):
        _check_arrived(to, commit, staged, find_differences)
        say(f"checked: downloaded at {commit.oid[:7]}, {checked}", is_important=True)
        if to.tag is not None:
            with_retries(
                HfApi(token=to.token).create_tag,
                to.repo_id,
                tag=to.tag,
                revision=commit.oid,
                repo_type=to.repo_type,
            )
            say(f"tagged {to.tag}", is_important=True)
    return url


def commit_folder(
    destination: Destination, folder: Path, message: str, replaced: tuple[str, ...] = REPLACED_FILES
) -> tuple[CommitInfo, bool]:
    """Push a folder in one commit. Create the repository and the branch if they do not exist.

    The commit deletes the files of the repository that match `replaced` but are not in the folder. Return the
    newest commit, and True if the push created the commit.
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
    # Do not retry the commit if `create_pr` is set. If the answer of the Hub were lost, a second request
    # would open a second pull request.
    commit = commit_once() if destination.create_pr else with_retries(commit_once)
    return commit, commit.oid != before


def _commit(
    api: HfApi, destination: Destination, folder: Path, message: str, replaced: tuple[str, ...]
) -> CommitInfo:
    # List the files of the repository before each try, because an earlier try has perhaps changed the files.
    # A commit can succeed even if the answer of the Hub is lost.
    info: Any = api.repo_info(
        destination.repo_id, repo_type=destination.repo_type, revision=destination.revision
    )
    there = [file.rfilename for file in info.siblings or []]
    files = _files_in(folder)
    additions = [CommitOperationAdd(name, folder / name) for name in files]
    deletions = [
        CommitOperationDelete(name)
        for name in there
        if name not in files and any(fnmatch(name, pattern) for pattern in replaced)
    ]
    # Do not use `upload_folder`. After a failed commit, `upload_folder` would upload the files in several
    # commits. `upload_folder` would also make every pull request a draft.
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
            raise HubError(
                f"After the push, the downloaded files differ from the pushed files in {', '.join(different)}."
            )


@torch.inference_mode()
def fingerprint(folder: Path) -> dict[str, Any]:
    """Return the tokens and logits of sample texts, and for an encoder-decoder model the translation of the
    first text. For two identical checkpoints, `fingerprint` returns equal results.
    """
    model, tokenizers = load_model(folder, kinds=tuple(KINDS)), load_tokenizers(folder)
    check_tokenizers(model, *tokenizers, str(folder))
    translator = Translator(model, *tokenizers) if model.config.is_encoder_decoder else None
    longest = translator.segmenter.max_length if translator else model.config.position_table_size
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
    translation = None
    if translator is not None:
        # A model with language tokens needs two languages. All languages are equally good for the comparison.
        language = next(iter(translator.segment_tokenizer.languages), None)
        translation = list(translator.translate(_SAMPLES[:1], src_lang=language, tgt_lang=language))
    return {
        "tokens": tokens,
        "logits": [of_text.tolist() for of_text in logits],
        "the translation": translation,
    }


@contextmanager
def only_hub_errors(remark: str = "") -> Iterator[None]:
    """Context manager that converts a `ValueError` to a `HubError`, and adds `remark` to the message."""
    try:
        with explained():
            yield
    except (HubError, ValueError) as error:
        kind = InvalidHubValueError if isinstance(error, InvalidValueError) else HubError
        raise kind(f"{sentence_of(error)} {remark}".rstrip()) from error


def push_pipeline(pipeline: Any, repo_id: str, **kwargs: Any) -> str:
    """Push a pipeline and the files of its training run, such as recipe.yaml. `kwargs`: `max_shard_size`, and
    the arguments of `push`.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        pipeline.save_pretrained(folder, max_shard_size=kwargs.pop("max_shard_size", "50GB"))
        # Do not copy the model card if the caller passes `license` or `base_model`, because `push` then
        # writes a new card.
        keeps_card = not (kwargs.get("license") or kwargs.get("base_model"))
        token = kwargs.get("token")
        with explained():
            if "/" not in repo_id:
                # Add the name of the user, because the card names the whole repository.
                check_token(Destination(repo_id, token=token))
                repo_id = f"{with_retries(HfApi(token=token).whoami)['name']}/{repo_id}"
            _copy_record(pipeline.model, folder, repo_id, keeps_card=keeps_card, token=token)
        return push(folder, repo_id, **kwargs)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for name in weight_files(folder):
        if name != INDEX_FILE and (folder / name).is_file():
            weights |= load_file(folder / name)
    return weights


def _have_same_weights(*folders: Path) -> bool:
    """Compare the weights of two checkpoints. The number of weight files can differ."""
    first, second = map(_weights, folders)
    return first.keys() == second.keys() and all(
        tensor.dtype == second[key].dtype and tensor.equal(second[key]) for key, tensor in first.items()
    )


def _copy_record(
    model: VaswaniPreTrainedModel, folder: Path, repo_id: str, *, keeps_card: bool, token: str | bool | None
) -> None:
    """Copy the files of a run, such as recipe.yaml, from the folder that the model was loaded from.

    If the weights of `model` have changed after the run, copy only the recipe, and write a results.json that
    says that the weights have changed.
    """
    origin = model.origin
    if origin is None:
        return
    name: str = model.name_or_path
    is_on_hub = not os.path.isdir(name)
    if is_on_hub:
        # Ignore a missing repository, because the repository was perhaps deleted after the model was loaded.
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
    if not _have_same_weights(origin, folder):
        if recipe is not None:
            write_results(folder, Results(weights_changed=True))
        return
    for file in RECORD_FILES:
        if (origin / file).is_file() and (keeps_card or file != CARD_FILE):
            shutil.copy(origin / file, folder)
    card = folder / CARD_FILE
    if is_on_hub and card.exists():
        # The code examples of the card must load the new repository. The title and the metadata `model-index`
        # contain the name of the repository without the owner.
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", repo_id, card.read_text(encoding="utf-8"))
        title = rf"^(# |- name: ){re.escape(last_part(name))}$"
        text = re.sub(title, rf"\g<1>{last_part(repo_id)}", text, flags=re.MULTILINE)
        card.write_text(text, encoding="utf-8")
