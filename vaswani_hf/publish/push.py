"""Pushing a finished checkpoint: one commit, downloaded again and compared. A run on its way: during_training.py."""

import filecmp
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, validate_repo_id
from transformers import GenerationConfig

from ..checkpoint.files import (
    CARD_FILE,
    CHECKPOINT_FILES,
    CURVE_FILE,
    GENERATION_FILE,
    RECIPE_FILE,
    RECORD_FILES,
    RESULTS_FILE,
    TOKENIZER_FILES,
    recipe_file,
    weight_files,
)
from ..checkpoint.hub import HubError, explained, has_token, sentence_of, with_retries
from ..checkpoint.kinds import KINDS
from ..checkpoint.loading import check_config
from ..checkpoint.tokenizers import load_tokenizers
from ..model.configuration_vaswani import TARGET_FOLDER
from ..model.pretrained_vaswani import FromRepository
from ..translation.sample_outputs import sample_outputs
from .model_card import check_card, model_card
from .record import published_yaml

# The files of an earlier push that a commit deletes if it has them no more.
OURS = (*CHECKPOINT_FILES, "*_vaswani.py", RECIPE_FILE, CURVE_FILE)
# Names that git does not allow for branches and tags, and those of commits and other kinds of refs.
_NO_REF = re.compile(r"^[./-]|\.\.|//|/\.|[\s~^:?*\[\\\x00-\x1f\x7f]|@\{|(\.|/|\.lock)$|^@?$|^refs/|^[0-9a-f]{40}$")
# Folders in which machines keep the files of their users, and other ways to name a place on one: ~/x, file://, C:\x\y and
# \\server\share, whose backslashes JSON doubles.
_USERS_FOLDERS = """
    home Users root mnt media tmp scratch data work workspace opt srv var usr/local nfs gpfs lustre afs beegfs Volumes
    projects? storage cluster
""".split()
_ANY_LOCAL_PATH = re.compile(
    rf"(?<![\w./~-])(/(?:{'|'.join(_USERS_FOLDERS)})\d*/[\w.-]+|~/[\w.-]+)"
    r"|(?<!\w)(file://[^\s\"'<>)]+|[A-Z]:[\\/]+[\w.-]+[\\/]+[\w.-]+|[A-Z]:\\+Users)"
    r"|(?<![\w\\])(\\\\[\w.-]+\\[\w$.-]+|\\{4}[\w.-]+\\\\[\w$.-]+)"
)
# Addresses have paths of their own, which are those of no machine.
_ADDRESS = re.compile(r"(?i)\b(?!file:)[a-z][a-z0-9+.-]*://[^\s<>\"')\]]+")
# Settings of a tokenizer that tell where it was loaded from.
_PLACES_OF_TOKENIZER = {"name_or_path", "is_local", "local_files_only"}


@dataclass(frozen=True)
class Destination:
    """A place on the Hub to push to.

    Attributes:
        repo_id (str): user/name.
        private (bool): Make the repository as a private one; it is refused for one that is there and public.
        revision (str, optional): A branch, which is made from main if there is none, or refs/pr/N; main by default.
        create_pr (bool): Open a pull request instead of changing main.
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
        """A commit to a pull request, which is open to people who may not write."""
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

    The repository is made if there is none. Everything is refused before anything is made or uploaded; a push that
    fails leaves the branch as it was and can be run again. The folder is only read.

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
        expected = sample_outputs(Path(folder))
        to = check_destination(to)
        files = repository_files(folder, to.repo_id, license=license, base_model=base_model)
        with_retries(_validate_card, files[CARD_FILE], to.token)
        commit, is_new = commit_files(to, files, commit_message or "Push a checkpoint of vaswani_hf")
        url = commit.pr_url or commit.commit_url
        print(f"{'pushed to' if is_new else 'nothing has changed since'} {url}", flush=True)
    again = f"the same push{f' to {commit.pr_revision}' if to.create_pr else ''} once more makes no second one, and checks it again."
    with _one_error(f"The commit is there all the same ({url}); {again}"):
        _check_arrived(to, commit, files, expected)
        print(f"checked: downloaded at {commit.oid[:7]}, same logits, tokens and translation", flush=True)
        if to.tag is not None:
            with_retries(HfApi(token=to.token).create_tag, to.repo_id, tag=to.tag, revision=commit.oid)
            print(f"tagged {to.tag}", flush=True)
    return url


def push_pipeline(pipeline: Any, repo_id: str, **kwargs: Any) -> str:
    """Push a translation pipeline as `push_checkpoint` does, with the record of a run that lay beside its model.

    Args:
        pipeline (TranslationPipeline): Its model is one of this package.
        repo_id (str): user/name.
        **kwargs: `max_shard_size`, and what `push_checkpoint` takes.
    """
    with TemporaryDirectory() as name:
        pipeline.save_pretrained(name, max_shard_size=kwargs.pop("max_shard_size", "50GB"))
        with explained():
            _copy_record(pipeline.model, Path(name), repo_id, kwargs)
        return push_checkpoint(name, repo_id, **kwargs)


def _copy_record(model: FromRepository, folder: Path, repo_id: str, given: Mapping[str, Any]) -> None:
    """Copy the record of a run from the origin of a model; of weights that have been changed since, the recipe with its terms."""
    origin, name = model.origin, model.name_or_path  # type: ignore[attr-defined]
    if origin is None:
        return
    is_same = all(_is_same(origin / path.name, path) for path in folder.glob("model*.safetensors"))
    if not os.path.isdir(name):
        place: dict[str, Any] = {"revision": origin.name, "cache_dir": origin.parents[2], "token": given.get("token")}
        # A repository that nobody sees any more has no card for others either.
        with suppress(RepositoryNotFoundError):
            snapshot_download(name, allow_patterns=list(RECORD_FILES), **place)
    # A licence or base model that is given is for a card that is made.
    is_made, record = given.get("license") or given.get("base_model"), recipe_file(origin)
    places = [record, *(origin / file for file in RECORD_FILES if is_same and not (is_made and file == CARD_FILE))]
    for path in dict.fromkeys(path for path in places if path and path.is_file()):
        shutil.copy(path, folder)
    if record and not is_same:
        (folder / RESULTS_FILE).write_text('{"weights_changed": true}')
    if not os.path.isdir(name) and (card := folder / CARD_FILE).exists():
        # The snippets of the card load what is pushed.
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", repo_id, card.read_text(encoding="utf-8"))
        card.write_text(text, encoding="utf-8")


@contextmanager
def _one_error(remark: str = "") -> Iterator[None]:
    # Callers have one class of exception to think of.
    try:
        with explained():
            yield
    except (HubError, ValueError) as error:
        raise HubError(f"{sentence_of(error)} {remark}".rstrip()) from error


def _check_arguments(destination: Destination) -> None:
    validate_repo_id(destination.repo_id)
    for name, kind in (("revision", "a branch that git allows, or refs/pr/N"), ("tag", "a tag that git allows")):
        value = getattr(destination, name)
        if value is None:
            continue
        if destination.create_pr:
            raise ValueError(
                f"`create_pr` opens a pull request to main, which goes without `{name}`, but that is {value!r}; leave out one "
                "of the two."
            )
        if _NO_REF.search(value) and not (name == "revision" and re.fullmatch(r"refs/pr/\d+", value)):
            raise ValueError(f"`{name}` must be the name of {kind}, but is {value!r}.")


def repository_files(folder: str | Path, repo_id: str, **card: str | None) -> dict[str, Path | bytes]:
    """The content of a checkpoint's repository: files, or the bytes of those that are made for the Hub, by their paths.

    Args:
        folder (str or Path): The checkpoint.
        repo_id (str): user/name, for the card.
        **card: `license` and `base_model` for the card.

    Raises:
        ValueError: If a record is damaged, the licence is not possible, or a text has a local path or a token.
    """
    folder = Path(folder)
    # The code that travels and the config that points to it are written anew: an older checkpoint has none, or an older one.
    config = KINDS[check_config(folder, folder, tuple(KINDS))].model_class.config_class.from_pretrained(folder)
    with TemporaryDirectory() as made:
        config.save_pretrained(made)
        if not (folder / GENERATION_FILE).is_file():
            GenerationConfig.from_model_config(config).save_pretrained(made)
        files: dict[str, Path | bytes] = {path.name: path.read_bytes() for path in sorted(Path(made).iterdir())}
    names = [GENERATION_FILE, *weight_files(folder), *TOKENIZER_FILES, CURVE_FILE]
    source, target = load_tokenizers(folder)
    if target is not source:
        names += [f"{TARGET_FOLDER}/{name}" for name in TOKENIZER_FILES]
    files |= {name: folder / name for name in names if (folder / name).is_file()}
    for name in [name for name in files if name.endswith("tokenizer_config.json")]:
        settings = json.loads((folder / name).read_text(encoding="utf-8"))
        kept = {key: value for key, value in settings.items() if key not in _PLACES_OF_TOKENIZER}
        files[name] = (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode()
    if recipe := published_yaml(folder, card.get("license")):
        files[RECIPE_FILE] = recipe.encode()
    files[CARD_FILE] = _card(folder, repo_id, card)
    refuse_private_text(files, folder)
    return files


def _card(folder: Path, repo_id: str, facts: dict[str, str | None]) -> Path | bytes:
    path = folder / CARD_FILE
    if not path.is_file():
        return str(model_card(folder, repo_id, **facts)).encode()
    for name, value in facts.items():
        if value is not None:
            raise ValueError(
                f"`{name}` is for a card that is made, but is {value!r} while '{path}' is taken as it is; write it there, or "
                "move that file away."
            )
    check_card(path)
    print("the card is the README.md of the checkpoint, as it is", flush=True)
    return path


def refuse_private_text(files: Mapping[str, Path | bytes], folder: Path) -> None:
    """Refuse to publish paths of this machine, and tokens.

    Args:
        files (dict): Files or contents by their paths in the repository.
        folder (Path): The checkpoint's, whose place nobody else needs to know.

    Raises:
        ValueError: If a text file has a local path or a token.
    """
    places = {str(folder.absolute()), str(folder.resolve()), str(Path.home())} - {"/"}
    # JSON writes other letters than those of ASCII as numbers.
    places |= {json.dumps(place)[1:-1] for place in places}
    # A longer path does not count that only contains such a place: with a folder /model, https://example.com/models.
    local = re.compile(
        rf"(?<![\w.])({'|'.join(re.escape(place) for place in sorted(places, key=len)[::-1])})(?![\w-])"
    )
    for name, content in files.items():
        if name.endswith((".safetensors", ".png", ".pt", ".pth")):
            continue
        text = _bytes(content).decode("utf-8", errors="replace")
        by_people = name.endswith((".md", ".yaml", "_config.json"))
        if found := local.search(text) or (_ANY_LOCAL_PATH.search(_ADDRESS.sub("", text)) if by_people else None):
            raise ValueError(f"{name} must be free of local paths, but has '{found[0]}'; take it out and push again.")
        if has_token(text):
            raise ValueError(f"{name} must be free of tokens, but has one; take it out, make another and push again.")


def _bytes(content: Path | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _validate_card(card: Path | bytes, token: str | bool | None) -> None:
    # The Hub looks at it again when it is pushed, but then there is a repository.
    response = get_session().post(
        f"{HfApi().endpoint}/api/validate-yaml",
        json={"content": _bytes(card).decode("utf-8", errors="replace"), "repoType": "model"},
        headers=build_hf_headers(token=token),
    )
    if problems := [problem["message"] for problem in response.json().get("errors") or []]:
        raise HubError(
            f"The Hub refuses the card: {', '.join(problems).rstrip('.')}; mend the lines between the two --- of README.md."
        )
    hf_raise_for_status(response)


def check_destination(destination: Destination) -> Destination:
    """The destination with the whole name of its repository, if a push to it is possible; nothing is made yet.

    Args:
        destination (Destination): A place that may lack the name of the user.

    Raises:
        HubError: If there is no token that may write, the repository belongs to somebody else or is not as private as it
            is to be, or the tag exists.
    """
    with explained():
        api = HfApi(token=destination.token)
        user = with_retries(api.whoami)
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise HubError(
                f"The token of {user['name']} may read but not write; make one with write permission at "
                f"{api.endpoint}/settings/tokens, and log in with `hf auth login` or set HF_TOKEN."
            )
        namespace, _, name = destination.repo_id.rpartition("/")
        destination = replace(destination, repo_id=f"{namespace or user['name']}/{name}")
        if info := _repository(api, destination.repo_id):
            _check_repository(api, destination, info)
        elif namespace and namespace not in (user["name"], *(group["name"] for group in user.get("orgs") or [])):
            raise HubError(
                f"There is no repository '{namespace}/{name}', and the token of {user['name']} cannot make one for "
                f"'{namespace}'; push to '{user['name']}/{name}', or use a token of '{namespace}'."
            )
    return destination


def _repository(api: HfApi, repo_id: str) -> Any:
    try:
        return with_retries(api.model_info, repo_id)
    except RepositoryNotFoundError:
        return None


def _check_repository(api: HfApi, destination: Destination, info: Any) -> None:
    repo_id, revision = destination.repo_id, destination.revision
    if destination.private and not info.private:
        raise HubError(
            f"`private` is for a repository that is made, but '{repo_id}' is there and public; leave it out, or make it "
            f"private at {api.endpoint}/{repo_id}/settings."
        )
    if not destination.is_pull_request:
        with_retries(api.auth_check, repo_id, write=True)
    refs = with_retries(api.list_repo_refs, repo_id, include_pull_requests=True)
    tags, branches = ({ref.name for ref in kind} for kind in (refs.tags, refs.branches))
    if destination.tag in tags | branches:
        raise HubError(
            f"`tag` must be new, but '{repo_id}' has a tag or branch '{destination.tag}'; take another name."
        )
    is_missing = destination.is_pull_request and revision not in {None, *(ref.ref for ref in refs.pull_requests or [])}
    if revision in tags or is_missing:
        raise HubError(f"`revision` must be a branch or a pull request that '{repo_id}' has, but is '{revision}'.")


def commit_files(destination: Destination, files: Mapping[str, Path | bytes], message: str) -> tuple[CommitInfo, bool]:
    """Push files in one commit, which also deletes those of earlier pushes; repository and branch are made if need be.

    Args:
        destination (Destination): The place.
        files (dict): Files or contents by their paths in the repository.
        message (str): The title of the commit.

    Returns:
        tuple: The `CommitInfo`, and True for a new commit; where nothing has changed it is the newest that there was.
    """
    api, repo_id, branch = HfApi(token=destination.token), destination.repo_id, destination.revision or "main"
    if not destination.is_pull_request and _repository(api, repo_id) is None:
        with_retries(api.create_repo, repo_id, private=destination.private or None, exist_ok=True)
    heads = with_retries(_heads, api, repo_id)
    if branch not in heads and branch != "main":
        with_retries(api.create_branch, repo_id, branch=branch)
    # A request whose answer was lost may have opened a pull request; a second one would open another.
    commit = (_commit if destination.create_pr else partial(with_retries, _commit))(api, destination, files, message)
    return commit, commit.oid != heads.get(branch, heads.get("main"))


def _heads(api: HfApi, repo_id: str) -> dict[str, str]:
    """The newest commits by branch and by refs/pr/N."""
    refs = api.list_repo_refs(repo_id, include_pull_requests=True)
    heads = {ref.name: ref.target_commit for ref in refs.branches}
    return heads | {ref.ref: ref.target_commit for ref in refs.pull_requests or []}


def _commit(api: HfApi, destination: Destination, files: Mapping[str, Path | bytes], message: str) -> CommitInfo:
    # Asked at each try: the commit of an earlier one may be there though its answer was lost.
    heads = _heads(api, destination.repo_id)
    parent = heads.get(destination.revision or "main", heads.get("main"))
    there = api.list_repo_files(destination.repo_id, revision=parent) if parent else []
    whole_folders = tuple({f"{path.split('/')[0]}/" for path in files if "/" in path})
    # A star does not reach into folders: the two have equally many slashes.
    named = {path for path in there for name in OURS if fnmatch(path, name) and path.count("/") == name.count("/")}
    ours = [path for path in there if path in named or path.startswith(whole_folders)]
    try:
        return api.create_commit(
            destination.repo_id,
            [
                *(CommitOperationAdd(name, content) for name, content in sorted(files.items())),
                *(CommitOperationDelete(path, is_folder=False) for path in ours if path not in files),
            ],
            commit_message=message,
            revision=destination.revision,
            create_pr=destination.create_pr,
            parent_commit=parent,
        )
    except HfHubHTTPError as error:
        if error.response is None or error.response.status_code != 412:
            raise
        raise HubError(
            f"Somebody else pushed to the repository '{destination.repo_id}' at the same moment, and nothing of this push is "
            "in it; run it again."
        ) from error


def _check_arrived(
    destination: Destination, commit: CommitInfo, files: Mapping[str, Path | bytes], expected: dict[str, Any]
) -> None:
    with TemporaryDirectory() as cache:
        downloaded = with_retries(
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
            arrived = sample_outputs(folder)
            different = [name for name, output in expected.items() if output != arrived[name]]
        if different:
            raise HubError(f"What was downloaded after the push differs in {', '.join(different)}.")


def _is_same(path: Path, content: Path | bytes) -> bool:
    if not path.is_file():
        return False
    return path.read_bytes() == content if isinstance(content, bytes) else filecmp.cmp(path, content, shallow=False)
