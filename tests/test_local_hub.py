"""The local Hub of the tests answers the client of the real Hub correctly."""

import os
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    constants,
    hf_hub_download,
    snapshot_download,
    whoami,
)
from huggingface_hub.errors import (
    BadRequestError,
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

USES_XET = not constants.HF_HUB_DISABLE_XET
WEIGHTS = os.urandom(400_000)
# The routes of the bytes of large files.
UPLOAD = ("POST", "/xet/v1/xorbs/") if USES_XET else ("PUT", "/storage/")
DOWNLOAD = ("GET", "/xet/blocks/") if USES_XET else ("GET", "/storage/")


@pytest.fixture
def api(alice) -> HfApi:
    return HfApi()


@pytest.fixture
def repository(hub, repo_id):
    """A public repository of alice with a small and a large file."""
    repository = hub.create_repository(repo_id)
    repository.commit({"config.json": b"{}", "weights.bin": WEIGHTS}, "Add a model")
    return repository


@pytest.fixture
def download(tmp_path):
    """Downloads a file into an empty cache and reads it."""

    def read(repo_id, name="weights.bin", **options) -> bytes:
        cache = tmp_path / f"cache-{len(list(tmp_path.iterdir()))}"
        with open(hf_hub_download(repo_id, name, cache_dir=cache, **options), "rb") as file:
            return file.read()

    return read


def sent(hub, method: str, pattern: str) -> list:
    return [request for request in hub.requests if request.method == method and pattern in request.path]


@pytest.mark.transfer
def test_files_of_all_sizes_come_back(hub, api, repo_id, tmp_path):
    contents = {
        "config.json": b"{}",
        "empty.txt": b"",
        "deep/model.safetensors": WEIGHTS,
        "ä b%20.txt": b"\xff\0",
        "README.md": b"---\nlicense: mit\nlanguage: [en, de]\npipeline_tag: translation\n---\nHello\n",
    }
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for name, content in contents.items():
        (tmp_path / "folder" / name).write_bytes(content)
    api.create_repo(repo_id)
    commit = api.upload_folder(repo_id=repo_id, folder_path=tmp_path / "folder", commit_message="All")
    assert commit.oid == hub.repository(repo_id).head()
    files = hub.repository(repo_id).files()
    assert files.pop(".gitattributes") and files == contents
    path = snapshot_download(repo_id, cache_dir=tmp_path / "cache")
    assert all(open(f"{path}/{name}", "rb").read() == content for name, content in contents.items())  # noqa: SIM115
    info = api.model_info(repo_id, files_metadata=True)
    assert (info.sha, info.pipeline_tag, info.card_data.license) == (commit.oid, "translation", "mit")
    assert {file.rfilename: file.size for file in info.siblings}["deep/model.safetensors"] == len(WEIGHTS)
    assert [commit.title for commit in api.list_repo_commits(repo_id)] == ["All", "initial commit"]
    entries = {entry.path: entry for entry in api.list_repo_tree(repo_id, recursive=True)}
    assert entries["deep/model.safetensors"].lfs.size == len(WEIGHTS) and "deep" in entries
    assert [path.path for path in api.get_paths_info(repo_id, ["deep", "missing"])] == ["deep"]
    # A file that the repository already has is not committed again.
    assert (
        api.upload_file(repo_id=repo_id, path_in_repo="deep/model.safetensors", path_or_fileobj=WEIGHTS).oid
        == info.sha
    )
    hosts = {request.host.split(":")[0] for request in sent(hub, *UPLOAD) + sent(hub, *DOWNLOAD)}
    assert hosts == {"localhost"}


def test_commits_branches_and_tags(api, repository, download):
    first = repository.head()
    api.create_branch(repository.id, branch="exp/2")
    api.create_tag(repository.id, tag="v1.0")
    operations = [CommitOperationAdd("new.txt", b"new"), CommitOperationDelete("weights.bin")]
    api.create_commit(repository.id, operations, commit_message="Much", revision="exp/2", parent_commit=first)
    assert set(repository.files("exp/2")) == {".gitattributes", "config.json", "new.txt"}
    assert repository.head() == first == repository.refs()["refs/tags/v1.0"]
    assert download(repository.id, "new.txt", revision="exp/2") == b"new"
    for revision in ("v1.0", "main", first[:8]):
        with pytest.raises(RemoteEntryNotFoundError):
            download(repository.id, "new.txt", revision=revision)
    with pytest.raises(HfHubHTTPError, match="412"):
        again = [CommitOperationAdd("new.txt", b"newer")]
        api.create_commit(repository.id, again, commit_message="Late", revision="exp/2", parent_commit=first)
    for call in (api.list_repo_tree, api.model_info):
        with pytest.raises(RevisionNotFoundError):
            next(iter(call(repository.id, revision="nowhere")), None)
    for call, name in ((api.create_branch, "branch"), (api.create_tag, "tag")):
        with pytest.raises(HfHubHTTPError, match="409"):
            call(repository.id, **{name: {"branch": "exp/2", "tag": "v1.0"}[name]})
    with pytest.raises(BadRequestError):
        api.create_branch(repository.id, branch="refs/pr/7")


def test_rights(hub, api, repository, bob, download):
    assert whoami()["name"] == "alice" and whoami()["auth"]["accessToken"]["role"] == "write"
    with pytest.raises(HfHubHTTPError, match="Invalid credentials in Authorization header"):
        HfApi(token="hf_wrong").model_info(repository.id)
    file = {"repo_id": repository.id, "path_in_repo": "a.bin", "path_or_fileobj": WEIGHTS[:99]}
    for token, code in ((hub.add_token("alice", role="read"), 403), (bob.token, 403), (False, 401)):
        other = HfApi(token=token)
        for call in (
            lambda other=other: other.create_repo("alice/another"),
            lambda other=other: other.upload_file(**file),
            lambda other=other: other.create_tag(repository.id, tag="v2"),
        ):
            with pytest.raises(HfHubHTTPError, match=str(code)):
                call()
    # Every user may open a pull request and change this pull request.
    bobs = HfApi(token=bob.token)
    assert bobs.upload_file(**file, create_pr=True).pr_revision == "refs/pr/1"
    bobs.upload_file(**file | {"path_in_repo": "b.bin"}, revision="refs/pr/1")
    assert {"a.bin", "b.bin"} <= set(repository.files("refs/pr/1")) and "a.bin" not in repository.files()
    with pytest.raises(HfHubHTTPError, match="403"):
        HfApi(token=hub.add_token("carol")).upload_file(**file, revision="refs/pr/1")
    repository.gated = "manual"
    with pytest.raises(GatedRepoError):
        download(repository.id, token=bob.token)
    repository.grant("bob")
    assert download(repository.id, token=bob.token) == WEIGHTS == download(repository.id)
    repository.private = True
    for token in (False, bob.token):
        with pytest.raises(RepositoryNotFoundError):
            download(repository.id, token=token)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("license: my-own", '"license" must be one of'),
        ("language: no", r'"language\[0\]" must be a string'),
        ("language: deutsch", '"language" with value "deutsch" is not valid'),
        ("a: b: c", "Invalid YAML"),
        (
            "model-index: [{name: a, results: [{task: {type: b}, metrics: []}]}]",
            '"model-index" is not of the form',
        ),
    ],
)
def test_a_card_with_bad_metadata_is_refused(api, repository, metadata, message):
    card = f"---\n{metadata}\n---\nText".encode()
    with pytest.raises(ValueError, match=message):
        api.upload_file(repo_id=repository.id, path_in_repo="README.md", path_or_fileobj=card)
    assert "README.md" not in repository.files()


@pytest.mark.transfer
def test_faults(hub, api, repository, tmp_path):
    file = {"repo_id": repository.id, "path_in_repo": "new.bin"}
    hub.fault("POST", "/preupload/", status=429, headers={"Retry-After": "0"})
    hub.fault(*UPLOAD, cut_after=100_000)
    api.upload_file(**file, path_or_fileobj=os.urandom(400_000))
    assert [request.status for request in sent(hub, "POST", "/preupload/")] == [429, 200]
    assert [request.status for request in sent(hub, *UPLOAD)] == [0, 200]
    # The content changes after the client has computed its hash.
    path = tmp_path / "model.bin"
    path.write_bytes(WEIGHTS[::-1])
    operation = CommitOperationAdd("model.bin", str(path))
    assert operation.upload_info.sha256
    path.write_bytes(os.urandom(len(WEIGHTS)))
    head = repository.head()
    with pytest.raises(HfHubHTTPError if USES_XET else RuntimeError) as caught:
        api.create_commit(repository.id, [operation], commit_message="Changed")
    assert "sha256" in f"{caught.value} {caught.value.__cause__}" and repository.head() == head


def test_requests_that_leave_loopback_and_tokens_at_another_origin_are_recorded(hub, alice, tmp_path):
    program = "import urllib.request as r\ntry: r.urlopen('https://example.org/')\nexcept OSError: pass"
    subprocess.run([sys.executable, "-c", program], env=hub.environment(alice.token), check=True)
    assert [line[:23] for line in hub.strangers] == ["CONNECT example.org:443"]
    headers = {"Authorization": f"Bearer {alice.token}"}
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(f"{hub.storage_origin}/storage/x/y", headers=headers))
    assert [(request.host.split(":")[0], request.has_token) for request in hub.leaks] == [("localhost", True)]
    hub.forget_offences()
