"""Pushing a finished checkpoint to the Hub in one commit, and checking what arrives when it is downloaded."""

import filecmp
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id
from transformers import GenerationConfig

from ..checkpoint.hub_errors import HubError, explained, has_token, patiently, sentence_of
from ..checkpoint.loading import FILES, TOKENIZER_FILES, load_model, weight_files
from ..checkpoint.tokenizers import TARGET_FOLDER, load_tokenizers
from ..model.configuration_vaswani import VaswaniConfig
from ..translation.translator import Translator
from .model_card import check_card, model_card, read_card
from .record import CARD_FILE, CURVE_FILE, RECIPE_FILE, published_yaml

# What an earlier push has left in the repository goes with the commit that does not have it any more.
OURS = (*FILES, "*_vaswani.py", RECIPE_FILE, CURVE_FILE)
# What names of branches and tags cannot have, as git has it, and what looks like a commit or another kind of ref.
_NO_REF = re.compile(r"^[./-]|\.\.|//|/\.|[\s~^:?*\[\\\x00-\x1f\x7f]|@\{|(\.|/|\.lock)$|^@$|^refs/|^[0-9a-f]{40}$")
# Where machines keep the files of their users.
_ANY_LOCAL_PATH = re.compile(
    r"(?<![\w.:/-])(/(?:home|Users|root|mnt|media|tmp|scratch|data|work|workspace|opt|srv|var)/[\w.-]+|[A-Z]:\\+Users)"
)
# Where a tokenizer was loaded from.
_PLACES_OF_TOKENIZER = {"name_or_path", "is_local", "local_files_only"}
_SAMPLES = ("The model reads the whole sentence at once.", "Ärger, naïve: 3.14 €!", "日本語 и русский")


@dataclass(frozen=True)
class Destination:
    """Where a checkpoint is pushed to.

    Attributes:
        repo_id (str): user/name.
        private (bool): Whether the repository is made as a private one; it is refused for one that is there and public.
        revision (str, optional): A branch, which is made from main if there is none, or refs/pr/N; main by default.
        create_pr (bool): Whether to open a pull request instead of changing main.
        tag (str, optional): The name of a new tag for the commit.
        token (str or bool, optional): By default the one that is in HF_TOKEN or stored by `hf auth login`.
    """

    repo_id: str
    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    tag: str | None = None
    token: str | bool | None = field(default=None, repr=False)

    @property
    def is_pull_request(self) -> bool:
        """Whether the commit goes to a pull request, which is open to people who may not write."""
        return self.create_pr or (self.revision or "").startswith("refs/pr/")


def push_checkpoint(
    folder: str | Path,
    repo_id: str,
    *,
    license: str | None = None,
    base_model: str | None = None,
    commit_message: str | None = None,
    **destination: Any,
) -> str:
    """Push a checkpoint in one commit, download it again, and compare the two.

    The repository is made if there is none. What can be refused is refused before anything is made or uploaded; a push
    that fails leaves the branch as it was and can be run again. The folder is only read.

    Args:
        folder (str or Path): A checkpoint as `vaswani train` or `save_pretrained` leaves it, with its tokenizers. Its
            README.md, if it has one, is the card; otherwise the card is made from the run.
        repo_id (str): user/name.
        license (str, optional): The licence for the card, as the Hub names it.
        base_model (str, optional): For the card: the repository whose model this one was made from.
        commit_message (str, optional): The title of the commit.
        **destination: `private`, `revision`, `create_pr`, `tag` and `token`; see `Destination`.

    Returns:
        str: The address of the commit, or of the pull request.

    Raises:
        HubError: If the push is refused or fails, or if what arrives is not what was pushed.
    """
    to = Destination(repo_id, **destination)
    with _one_error():
        _check_arguments(to)
        expected = _outputs(Path(folder))
        to = check_destination(to)
        files = repository_files(folder, to.repo_id, license=license, base_model=base_model)
        _validate_card(files[CARD_FILE], to.token)
        commit, is_new = commit_files(to, files, commit_message or "Push a checkpoint of vaswani_hf")
        url = commit.pr_url or commit.commit_url
        nothing = (
            "no pull request was opened: nothing has changed since" if to.create_pr else "nothing has changed since"
        )
        print(f"{'pushed to' if is_new else nothing} {url}", flush=True)
        with _standing_commit(url):
            _check_arrived(to, commit, files, expected)
            print(f"checked: downloaded at {commit.oid[:7]}, same logits, tokens and translation", flush=True)
            if to.tag is not None:
                patiently(HfApi(token=to.token).create_tag, to.repo_id, tag=to.tag, revision=commit.oid)
                print(f"tagged {to.tag}", flush=True)
    return url


@contextmanager
def _one_error() -> Iterator[None]:
    """Let callers have one class of exception to think of.

    Raises:
        HubError: In place of what has to do with the Hub, and of what is wrong with the arguments and the checkpoint.
    """
    try:
        with explained():
            yield
    except ValueError as error:
        raise HubError(sentence_of(error)) from error


@contextmanager
def _standing_commit(url: str) -> Iterator[None]:
    """Say of what fails after the commit that the commit is there.

    Raises:
        HubError: With that sentence.
        KeyboardInterrupt: As it came.
    """
    try:
        yield
    except KeyboardInterrupt:
        print(f"the commit is there ({url}), but was not checked", file=sys.stderr, flush=True)
        raise
    except Exception as error:
        raise HubError(
            f"{sentence_of(error)} The commit is there all the same ({url}); the same push once more makes no second one, and "
            "checks it again."
        ) from error


def _check_arguments(destination: Destination) -> None:
    """Refuse what no Hub would take.

    Raises:
        ValueError: If two arguments contradict each other, or a name cannot be one.
    """
    validate_repo_id(destination.repo_id)
    revision, tag = destination.revision, destination.tag
    for name, value in (("revision", revision), ("tag", tag)):
        if destination.create_pr and value is not None:
            raise ValueError(
                f"`create_pr` opens a pull request to main, which goes without `{name}`, but that is {value!r}; leave out one "
                "of the two."
            )
    if tag is not None and _NO_REF.search(tag or "."):
        raise ValueError(f"`tag` must be a name that git allows, such as v1.0, but is {tag!r}.")
    if revision is not None and not re.fullmatch(r"refs/pr/\d+", revision) and _NO_REF.search(revision or "."):
        raise ValueError(
            f"`revision` must be the name of a branch that git allows, or refs/pr/N, but is {revision!r}."
        )


def repository_files(folder: str | Path, repo_id: str, **card: str | None) -> dict[str, Path | bytes]:
    """What the repository of a checkpoint holds.

    Args:
        folder (str or Path): The checkpoint.
        repo_id (str): user/name, for the card.
        **card: `license` and `base_model` for the card.

    Returns:
        dict: Files, or the contents of those that are made for the Hub, by their paths in the repository.

    Raises:
        ValueError: If a record is damaged, the licence is not possible, or a text has a local path or a token.
    """
    folder = Path(folder)
    # The code that travels and what points to it are written anew: an older checkpoint has none, or an older one.
    config = VaswaniConfig.from_pretrained(folder)
    with TemporaryDirectory() as made:
        config.save_pretrained(made)
        if not (folder / "generation_config.json").is_file():
            GenerationConfig.from_model_config(config).save_pretrained(made)
        files: dict[str, Path | bytes] = {path.name: path.read_bytes() for path in sorted(Path(made).iterdir())}
    names = ["generation_config.json", *weight_files(folder), *TOKENIZER_FILES, CURVE_FILE]
    source, target = load_tokenizers(folder)
    if target is not source:
        names += [f"{TARGET_FOLDER}/{name}" for name in TOKENIZER_FILES]
    files |= {name: folder / name for name in names if (folder / name).is_file()}
    for name in [name for name in files if name.endswith("tokenizer_config.json")]:
        settings = json.loads((folder / name).read_text(encoding="utf-8"))
        kept = {key: value for key, value in settings.items() if key not in _PLACES_OF_TOKENIZER}
        files[name] = (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode()
    if (folder / RECIPE_FILE).is_file():
        files[RECIPE_FILE] = published_yaml(folder / RECIPE_FILE).encode()
    files[CARD_FILE] = _card(folder, repo_id, card)
    refuse_private_text(files, folder)
    return files


def _card(folder: Path, repo_id: str, facts: dict[str, str | None]) -> Path | bytes:
    """The card that the folder has, or one that is made.

    Raises:
        ValueError: If there is a card, and facts for one or a licence that the data does not allow.
    """
    path = folder / CARD_FILE
    if not path.is_file():
        return str(model_card(folder, repo_id, **facts)).encode()
    for name, value in facts.items():
        if value is not None:
            raise ValueError(
                f"`{name}` is for a card that is made, but is {value!r} while '{path}' is taken as it is; write it there, or "
                "move that file away."
            )
    check_card(folder, read_card(path))
    print("the card is the README.md of the checkpoint, as it is", flush=True)
    return path


def refuse_private_text(files: Mapping[str, Path | bytes], folder: Path) -> None:
    """Refuse to publish where things are on this machine, and who may write.

    Args:
        files (dict): Files or contents by their paths in the repository.
        folder (Path): The checkpoint's, whose place nobody else needs to know.

    Raises:
        ValueError: If a text file has a local path or a token.
    """
    places = {str(folder.absolute()), str(folder.resolve()), str(Path.home())} - {"/"}
    # In JSON other letters than those of ASCII stand as numbers.
    places |= {json.dumps(place)[1:-1] for place in places}
    # Not what only has such a path within it: with a folder /model, https://example.com/models is none.
    local = re.compile(
        rf"(?<![\w.])({'|'.join(re.escape(place) for place in sorted(places, key=len)[::-1])})(?![\w-])"
    )
    for name, content in files.items():
        if name.endswith((".safetensors", ".png")):
            continue
        text = _bytes(content).decode("utf-8", errors="replace")
        by_people = name.endswith((".md", ".yaml", "_config.json"))
        if found := local.search(text) or (_ANY_LOCAL_PATH.search(text) if by_people else None):
            raise ValueError(f"{name} must be free of local paths, but has '{found[0]}'; take it out and push again.")
        if has_token(text):
            raise ValueError(
                f"{name} must be free of tokens, but has one; take it out, make another token and push again."
            )


def _bytes(content: Path | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _validate_card(card: Path | bytes, token: str | bool | None) -> None:
    """Have the Hub look at the card before there is a repository.

    `RepoCard.validate` asks huggingface.co in some versions of the client, whatever HF_ENDPOINT says.
    """
    validate = getattr(HfApi(token=token), "_validate_yaml", None)
    if validate is not None:
        # The commit says its warnings again.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            patiently(validate, _bytes(card).decode("utf-8", errors="replace"), repo_type="model")


def check_destination(destination: Destination) -> Destination:
    """Refuse what the Hub would refuse, before anything is made there.

    Args:
        destination (Destination): Where to push to.

    Returns:
        Destination: With the whole name of the repository.

    Raises:
        HubError: If there is no token that may write, the repository belongs to somebody else or is not as private as it
            is to be, or the tag exists.
    """
    if constants.HF_HUB_OFFLINE:
        raise HubError("A push needs the Hub, but HF_HUB_OFFLINE is set; run it without.")
    with explained():
        api = HfApi(token=destination.token)
        user = patiently(api.whoami)
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise HubError(
                f"The token of {user['name']} may read but not write; make one with write permission at "
                f"{api.endpoint}/settings/tokens, and log in with `hf auth login` or set HF_TOKEN."
            )
        if "/" not in destination.repo_id:
            destination = replace(destination, repo_id=f"{user['name']}/{destination.repo_id}")
        info = _repository(api, destination.repo_id)
        if info is not None:
            _check_repository(api, destination, info)
        elif destination.is_pull_request:
            raise HubError(
                f"A pull request needs a repository, but there is no '{destination.repo_id}' on {api.endpoint}, or it is "
                "private and this token may not read it; check the name."
            )
        else:
            _check_namespace(user, destination.repo_id)
    return destination


def _check_namespace(user: dict[str, Any], repo_id: str) -> None:
    """Refuse a repository that the user cannot make.

    Raises:
        HubError: If it would belong to somebody else.
    """
    namespace, name = repo_id.split("/")
    if namespace not in (user["name"], *(organization["name"] for organization in user.get("orgs") or [])):
        raise HubError(
            f"There is no repository '{repo_id}', and the token of {user['name']} cannot make one for '{namespace}'; push to "
            f"'{user['name']}/{name}', or use a token of '{namespace}'."
        )


def _repository(api: HfApi, repo_id: str) -> Any:
    try:
        return patiently(api.model_info, repo_id)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        return None


def _check_repository(api: HfApi, destination: Destination, info: Any) -> None:
    """Refuse a repository that cannot be pushed to as it is asked for.

    Raises:
        HubError: With what does not fit.
        HfHubHTTPError: If the token may not write.
    """
    if destination.private and not info.private:
        raise HubError(
            f"`private` is for a repository that is made, but '{destination.repo_id}' is there and public; leave it out, "
            f"or make it private at {api.endpoint}/{destination.repo_id}/settings."
        )
    if not destination.is_pull_request:
        try:
            patiently(api.auth_check, destination.repo_id, write=True)
        except HfHubHTTPError as error:
            # A Hub that has no such question answers 404.
            if error.response.status_code in (401, 403):
                raise
    refs = patiently(api.list_repo_refs, destination.repo_id, include_pull_requests=True)
    tags = {tag.name for tag in refs.tags}
    branches = {branch.name for branch in refs.branches}
    if destination.tag in tags | branches:
        what = "tag" if destination.tag in tags else "branch"
        raise HubError(
            f"`tag` must be new, but '{destination.repo_id}' has a {what} '{destination.tag}'; take another name."
        )
    if destination.revision in tags:
        raise HubError(
            f"`revision` must be a branch, but '{destination.revision}' is a tag of '{destination.repo_id}'."
        )
    wanted = f"{destination.revision or 'main'}/"
    for name in branches:
        if f"{name}/" != wanted and (f"{name}/".startswith(wanted) or wanted.startswith(f"{name}/")):
            raise HubError(
                f"`revision` '{destination.revision}' cannot be a branch beside '{name}', which '{destination.repo_id}' has: "
                "git takes one for a folder of the other; take another name."
            )
    requests = {request.ref for request in refs.pull_requests or []}
    if destination.is_pull_request and not destination.create_pr and destination.revision not in requests:
        raise HubError(
            f"`revision` is '{destination.revision}', but '{destination.repo_id}' has no such pull request."
        )


def commit_files(destination: Destination, files: Mapping[str, Path | bytes], message: str) -> tuple[CommitInfo, bool]:
    """Push files in one commit, together with deleting what earlier pushes have left and these files do without.

    The repository and the branch are made if there are none; a branch that was made for nothing is taken away again.

    Args:
        destination (Destination): Where to.
        files (dict): Files or contents by their paths in the repository.
        message (str): The title of the commit.

    Returns:
        tuple: The `CommitInfo`, and whether it is a new one; where nothing has changed it is the newest that there was.
    """
    api, repo_id, branch = HfApi(token=destination.token), destination.repo_id, destination.revision or "main"
    if not destination.is_pull_request and _repository(api, repo_id) is None:
        patiently(api.create_repo, repo_id, private=destination.private or None, exist_ok=True)
    heads = patiently(_heads, api, repo_id)
    is_new_branch = branch not in heads and branch != "main"
    if is_new_branch:
        patiently(api.create_branch, repo_id, branch=branch)
    try:
        # A request whose answer was lost may have opened a pull request; a second one would open another.
        commit = (_commit if destination.create_pr else partial(patiently, _commit))(api, destination, files, message)
    except BaseException:
        if is_new_branch:
            with suppress(Exception):
                patiently(api.delete_branch, repo_id, branch=branch)
        raise
    return commit, commit.oid != heads.get(branch, heads.get("main"))


def _heads(api: HfApi, repo_id: str) -> dict[str, str]:
    """The newest commits by branch and by refs/pr/N."""
    refs = api.list_repo_refs(repo_id, include_pull_requests=True)
    heads = {ref.name: ref.target_commit for ref in refs.branches}
    return heads | {ref.ref: ref.target_commit for ref in refs.pull_requests or []}


def _commit(api: HfApi, destination: Destination, files: Mapping[str, Path | bytes], message: str) -> CommitInfo:
    """One commit of all files, or none where nothing has changed; refused if somebody is faster than this request."""
    # Asked at each try: the commit of an earlier one may be there though its answer was lost.
    heads = _heads(api, destination.repo_id)
    parent = heads.get(destination.revision or "main", heads.get("main"))
    there = api.list_repo_files(destination.repo_id, revision=parent) if parent else []
    whole_folders = tuple({f"{path.split('/')[0]}/" for path in files if "/" in path})
    is_ours = [path.startswith(whole_folders) or any(_is_like(path, pattern) for pattern in OURS) for path in there]
    stale = [path for path, ours in zip(there, is_ours, strict=True) if ours and path not in files]
    return api.create_commit(
        destination.repo_id,
        [
            *(CommitOperationAdd(name, content) for name, content in sorted(files.items())),
            *(CommitOperationDelete(path, is_folder=False) for path in stale),
        ],
        commit_message=message,
        revision=destination.revision,
        create_pr=destination.create_pr,
        parent_commit=parent,
    )


def _is_like(path: str, pattern: str) -> bool:
    return fnmatch(path, pattern) and path.count("/") == pattern.count("/")


def _check_arrived(
    destination: Destination, commit: CommitInfo, files: Mapping[str, Path | bytes], expected: dict[str, Any]
) -> None:
    """Download what was pushed into an empty cache, load it, and compare.

    Raises:
        HubError: If something differs.
    """
    with TemporaryDirectory() as cache, explained(cache):
        downloaded = patiently(
            snapshot_download,
            destination.repo_id,
            revision=commit.pr_revision or commit.oid,
            cache_dir=cache,
            allow_patterns=list(files),
            token=destination.token,
        )
        folder = Path(downloaded)
        different = [name for name, content in files.items() if not _is_same(folder / name, content)]
        if not different:
            arrived = _outputs(folder)
            different = [name for name, output in expected.items() if output != arrived[name]]
        if different:
            raise HubError(f"What was downloaded after the push differs in {', '.join(different)}.")


def _is_same(path: Path, content: Path | bytes) -> bool:
    if not path.is_file():
        return False
    return path.read_bytes() == content if isinstance(content, bytes) else filecmp.cmp(path, content, shallow=False)


@torch.inference_mode()
def _outputs(folder: Path) -> dict[str, Any]:
    """What a checkpoint makes of the samples: tokens, logits and one translation.

    Raises:
        ValueError: If it cannot be loaded, or computes no numbers.
    """
    translator = Translator(load_model(folder), *load_tokenizers(folder))
    tokens, logits = [], []
    for text in _SAMPLES:
        source, target = (
            tokenizer(text, return_tensors="pt")["input_ids"][:, : translator.max_length]
            for tokenizer in (translator.source_tokenizer, translator.target_tokenizer)
        )
        tokens.append((source.tolist(), target.tolist()))
        logits.append(translator.model(input_ids=source, decoder_input_ids=target).logits)
    if not all(of_text.isfinite().all() for of_text in logits):
        raise ValueError(f"The model in '{folder}' must compute finite logits, but there are infinite ones or NaN.")
    translation = list(translator.translate(_SAMPLES[:1], repetition_guard=False))
    return {"tokens": tokens, "logits": [of_text.tolist() for of_text in logits], "the translation": translation}
