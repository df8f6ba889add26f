"""The Hub of the tests is right, as the stock client sees it."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from datasets import load_dataset
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    constants,
    hf_hub_download,
    snapshot_download,
    try_to_load_from_cache,
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
from huggingface_hub.file_download import _CACHED_NO_EXIST

USES_XET = not constants.HF_HUB_DISABLE_XET
WEIGHTS = os.urandom(400_000)
# The routes of the bytes of large files, in the mode of this run.
UPLOAD = ("POST", "/xet/v1/xorbs/") if USES_XET else ("PUT", "/storage/")
DOWNLOAD = ("GET", "/xet/blocks/") if USES_XET else ("GET", "/storage/")


@pytest.fixture
def api(alice) -> HfApi:
    return HfApi()


@pytest.fixture
def repository(hub, repo_id):
    """A public repository of alice with a small and a large file."""
    made = hub.create_repository(repo_id)
    made.commit({"config.json": b"{}", "weights.bin": WEIGHTS}, "Add a model")
    return made


@pytest.fixture
def download(tmp_path):
    """Download a file into an empty cache and read it."""

    def read(repo_id, name="weights.bin", **options) -> bytes:
        cache = tmp_path / f"cache-{len(list(tmp_path.iterdir()))}"
        with open(hf_hub_download(repo_id, name, cache_dir=cache, **options), "rb") as file:
            return file.read()

    return read


def sent(hub, method: str, pattern: str) -> list:
    return [request for request in hub.requests if request.method == method and pattern in request.path]


@pytest.mark.transfer
def test_files_of_all_sizes_come_back(hub, api, repo_id, tmp_path):
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    contents = {
        "config.json": b"{}",
        "empty.txt": b"",
        "deep/model.safetensors": WEIGHTS,
        "ä b%20.txt": b"\xff\0",
    }
    contents["README.md"] = b"---\nlicense: mit\nlanguage: [en, de]\npipeline_tag: translation\n---\nHello\n"
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    url = api.create_repo(repo_id)
    commit = api.upload_folder(
        repo_id=repo_id, folder_path=folder, commit_message="All", commit_description="Of it"
    )
    assert url.repo_id == repo_id and commit.oid == hub.repository(repo_id).head()
    files = hub.repository(repo_id).files()
    assert files.pop(".gitattributes") and files == contents
    path = snapshot_download(repo_id, cache_dir=tmp_path / "cache")
    for name, content in contents.items():
        with open(f"{path}/{name}", "rb") as file:
            assert file.read() == content
    info = api.model_info(repo_id, files_metadata=True)
    assert (info.sha, info.pipeline_tag, info.card_data.license) == (commit.oid, "translation", "mit")
    assert {"en", "de", "license:mit", "translation"} <= set(info.tags)
    sizes = {s.rfilename: (s.size, s.lfs and s.lfs.size) for s in info.siblings}
    assert sizes["deep/model.safetensors"] == (len(WEIGHTS), len(WEIGHTS)) and sizes["config.json"] == (
        2,
        None,
    )
    assert [c.title for c in api.list_repo_commits(repo_id)] == ["All", "initial commit"]
    assert api.list_repo_commits(repo_id)[0].message == "Of it"
    host = {request.host.split(":")[0] for request in sent(hub, *UPLOAD) + sent(hub, *DOWNLOAD)}
    assert host == {"localhost"}


def test_a_commit_adds_and_deletes_at_once(hub, api, repository):
    repository.commit({"gone.txt": b"c"})
    head = repository.head()
    operations = [
        CommitOperationAdd("new.txt", b"new"),
        CommitOperationAdd("big.bin", WEIGHTS[:1000]),
        CommitOperationDelete("gone.txt"),
    ]
    api.create_commit(repository.id, operations, commit_message="Much", parent_commit=head)
    files = repository.files()
    del files[".gitattributes"]
    contents = {"config.json": b"{}", "weights.bin": WEIGHTS, "new.txt": b"new", "big.bin": WEIGHTS[:1000]}
    assert files == contents
    before = repository.head()
    with pytest.raises(HfHubHTTPError, match="412"):
        api.create_commit(
            repository.id, [CommitOperationAdd("a", b"a")], commit_message="Late", parent_commit=head
        )
    with pytest.raises(RevisionNotFoundError):
        api.create_commit(
            repository.id, [CommitOperationAdd("a", b"a")], commit_message="No", revision="nowhere"
        )
    assert repository.head() == before


@pytest.mark.transfer
def test_what_is_there_is_not_uploaded_or_committed_again(hub, api, repository):
    head = repository.head()
    for name, content in (("weights.bin", WEIGHTS), ("config.json", b"{}")):
        assert api.upload_file(repo_id=repository.id, path_in_repo=name, path_or_fileobj=content).oid == head
    assert repository.head() == head
    if not USES_XET:
        assert not sent(hub, *UPLOAD)


def test_branches_tags_and_commits_name_their_own_files(hub, api, repository, download):
    first = repository.head()
    api.create_branch(repository.id, branch="exp/2")
    api.create_tag(repository.id, tag="v1.0", tag_message="First")
    api.upload_file(
        repo_id=repository.id, path_in_repo="config.json", path_or_fileobj=b"[2]", revision="exp/2"
    )
    repository.commit({"config.json": b"[3]"})
    read = {
        revision: download(repository.id, "config.json", revision=revision)
        for revision in ("v1.0", "exp/2", "main")
    }
    assert read == {"v1.0": b"{}", "exp/2": b"[2]", "main": b"[3]"}
    assert download(repository.id, "config.json", revision=first) == b"{}"
    assert download(repository.id, "config.json", revision=first[:8]) == b"{}"
    refs = api.list_repo_refs(repository.id)
    assert {ref.name: ref.target_commit for ref in refs.branches + refs.tags} == {
        "main": repository.head(),
        "exp/2": repository.head("exp/2"),
        "v1.0": first,
    }
    for call in (api.create_branch, api.create_tag):
        with pytest.raises(HfHubHTTPError, match="409"):
            call(
                repository.id,
                **{
                    call.__name__.removeprefix("create_"): {"create_branch": "exp/2"}.get(
                        call.__name__, "v1.0"
                    )
                },
            )
    with pytest.raises(BadRequestError):
        api.create_branch(repository.id, branch="refs/pr/7")
    with pytest.raises(RevisionNotFoundError):
        api.model_info(repository.id, revision="nowhere")


def test_listings(api, repository):
    repository.commit({"deep/er/a.txt": b"abc", "deep/b.safetensors": WEIGHTS[:10]}, "More")
    assert sorted(api.list_repo_files(repository.id)) == sorted(repository.files())
    entries = {entry.path: entry for entry in api.list_repo_tree(repository.id, recursive=True)}
    assert entries["deep/er/a.txt"].size == 3 and entries["deep/b.safetensors"].lfs.size == 10
    paths = api.get_paths_info(repository.id, ["deep", "weights.bin", "missing"])
    assert [path.path for path in paths] == ["deep", "weights.bin"] and paths[1].size == len(WEIGHTS)
    with pytest.raises(RemoteEntryNotFoundError):
        list(api.list_repo_tree(repository.id, "missing"))


@pytest.mark.transfer
def test_a_stranger_may_open_a_pull_request_and_nothing_else(hub, api, repository, bob, download):
    bobs = HfApi(token=bob.token)
    head = repository.head()
    with pytest.raises(HfHubHTTPError, match="create_pr=1"):
        bobs.upload_file(repo_id=repository.id, path_in_repo="a.txt", path_or_fileobj=b"a")
    contents = {"config.json": b'{"by": "bob"}', "model.safetensors": WEIGHTS}
    operations = [CommitOperationAdd(name, content) for name, content in contents.items()]
    one = bobs.create_commit(repository.id, operations, commit_message="One", create_pr=True)
    file = {"repo_id": repository.id, "path_in_repo": "two.bin", "path_or_fileobj": WEIGHTS[:999]}
    two = bobs.upload_file(**file, commit_message="Two", create_pr=True)
    assert (one.pr_revision, two.pr_revision, two.pr_num) == ("refs/pr/1", "refs/pr/2", 2)
    assert repository.head() == head
    assert download(repository.id, "config.json", revision="refs/pr/1") == b'{"by": "bob"}'
    bobs.upload_file(
        repo_id=repository.id, path_in_repo="more.txt", path_or_fileobj=b"m", revision="refs/pr/2"
    )
    carol = HfApi(token=hub.add_user("carol"))
    with pytest.raises(HfHubHTTPError, match="403"):
        carol.upload_file(**file, revision="refs/pr/1")
    assert [commit.title for commit in api.list_repo_commits(repository.id, revision="refs/pr/2")][1] == "Two"
    assert [ref.ref for ref in api.list_repo_refs(repository.id, include_pull_requests=True).pull_requests]


def test_only_its_people_see_a_private_repository(hub, api, repo_id, bob, download):
    api.create_repo(repo_id, private=True)
    api.upload_file(repo_id=repo_id, path_in_repo="weights.bin", path_or_fileobj=WEIGHTS)
    assert download(repo_id) == WEIGHTS
    reader = hub.add_token("alice", role="read")
    assert download(repo_id, token=reader) == WEIGHTS
    for token in (False, bob.token):
        with pytest.raises(RepositoryNotFoundError):
            download(repo_id, token=token)
        assert not HfApi(token=token).repo_exists(repo_id)


def test_a_gated_repository_shows_its_files_to_who_was_granted(hub, api, repository, bob, download):
    repository.gated = "manual"
    for token in (False, bob.token):
        assert HfApi(token=token).model_info(repository.id).gated == "manual"
        with pytest.raises(GatedRepoError):
            download(repository.id, token=token)
        with pytest.raises(GatedRepoError):
            HfApi(token=token).auth_check(repository.id)
    repository.grant("bob")
    assert download(repository.id, token=bob.token) == WEIGHTS == download(repository.id)


def test_tokens(hub, api, repository, bob):
    assert whoami()["name"] == "alice" and whoami()["auth"]["accessToken"]["role"] == "write"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        whoami(token="hf_wrong")
    with pytest.raises(HfHubHTTPError, match="Invalid credentials in Authorization header"):
        HfApi(token="hf_wrong").model_info(repository.id)
    for token in (hub.add_token("alice", role="read"), bob.token):
        other = HfApi(token=token)
        assert other.model_info(repository.id).id == repository.id
        with pytest.raises(HfHubHTTPError, match="403"):
            other.create_repo("alice/another")
        with pytest.raises(HfHubHTTPError, match="403"):
            other.upload_file(repo_id=repository.id, path_in_repo="a.bin", path_or_fileobj=WEIGHTS)
        with pytest.raises(HfHubHTTPError, match="403"):
            other.create_tag(repository.id, tag="v2")
    with pytest.raises(HfHubHTTPError, match="401"):
        HfApi(token=False).upload_file(repo_id=repository.id, path_in_repo="a.txt", path_or_fileobj=b"")
    with pytest.raises(HfHubHTTPError, match="401"):
        HfApi(token=False).create_repo("alice/another")


def test_repositories_are_made_by_their_people(hub, api, repo_id):
    assert HfApi(token=hub.add_user("dora", orgs=["lab"])).create_repo("lab/tool").repo_id == "lab/tool"
    api.create_repo(repo_id)
    assert api.create_repo(repo_id, exist_ok=True).repo_id == repo_id
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo(repo_id)
    data = api.create_repo(repo_id, repo_type="dataset")
    assert data.repo_type == "dataset" and hub.repository(repo_id, type="dataset") is not hub.repository(
        repo_id
    )
    with pytest.raises(KeyError):
        hub.repository("alice/none")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("license: my-own", '"license" must be one of'),
        ("language: no", r'"language\[0\]" must be a string'),
        ("language: deutsch", '"language" with value "deutsch" is not valid'),
        ("tags: [1]", r'"tags\[0\]" must be a string'),
        ("a: b: c", "Invalid YAML"),
        (
            "model-index: [{name: a, results: [{task: {type: b}, metrics: []}]}]",
            '"model-index" is not of the form',
        ),
    ],
)
def test_a_card_with_bad_metadata_is_refused(api, repository, metadata, message):
    card = f"---\n{metadata}\n---\nText".encode()
    head = repository.head()
    with pytest.raises(ValueError, match=message):
        api.upload_file(repo_id=repository.id, path_in_repo="README.md", path_or_fileobj=card)
    assert repository.head() == head


@pytest.mark.transfer
def test_uploads_of_the_wrong_content_are_refused(hub, api, repository, tmp_path):
    """A file that changes between its hashing and its upload."""
    path, content = tmp_path / "model.bin", os.urandom(100_000)
    path.write_bytes(content)
    operation = CommitOperationAdd("model.bin", str(path))
    assert operation.upload_info.sha256
    path.write_bytes(content[::-1])
    head = repository.head()
    # The client wraps the refusal of an LFS upload, and the xet client sends what it read: the commit is refused.
    with pytest.raises(HfHubHTTPError if USES_XET else RuntimeError) as caught:
        api.create_commit(repository.id, [operation], commit_message="Changed")
    assert "sha256" in f"{caught.value} {caught.value.__cause__}"
    assert repository.head() == head


@pytest.mark.skipif(not USES_XET, reason="of the xet mode")
def test_chunks_that_anybody_uploaded_are_not_uploaded_again(hub, api, repository, alice, tmp_path):
    content = os.urandom(1_000_000)
    api.upload_file(repo_id=repository.id, path_in_repo="one.bin", path_or_fileobj=content)
    assert sum(request.body_size for request in sent(hub, *UPLOAD)) > len(content)
    hub.clear()
    api.upload_file(repo_id=repository.id, path_in_repo="two.bin", path_or_fileobj=content + b"the end")
    assert 0 < sum(request.body_size for request in sent(hub, *UPLOAD)) < 200_000
    hub.clear()
    (tmp_path / "three.bin").write_bytes(content)
    # Another machine knows nothing of what this one has uploaded.
    program = f"import huggingface_hub as h; h.upload_file(repo_id='{repository.id}', path_in_repo='three.bin', path_or_fileobj='{tmp_path}/three.bin')"
    environment = hub.environment(alice.token) | {"HF_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
    assert sent(hub, "GET", "/xet/v1/chunks/") and not sent(hub, *UPLOAD)
    files = repository.files()
    assert files["one.bin"] == files["three.bin"] == content and files["two.bin"] == content + b"the end"


@pytest.mark.transfer
def test_a_cut_upload_is_tried_again(hub, api, repository):
    hub.fault(*UPLOAD, cut_after=100_000)
    content = os.urandom(400_000)
    api.upload_file(repo_id=repository.id, path_in_repo="new.bin", path_or_fileobj=content)
    tries = sent(hub, *UPLOAD)
    assert [request.status for request in tries] == [0, 200] and tries[0].body_size == 100_000
    assert repository.files()["new.bin"] == content


def test_a_cut_commit_changes_nothing(hub, api, repository):
    hub.fault("POST", "/commit/main", cut_after=10, times=None)
    head = repository.head()
    with pytest.raises(Exception, match="disconnected|closed|reset|peer"):
        api.upload_file(repo_id=repository.id, path_in_repo="a.txt", path_or_fileobj=b"a")
    assert repository.head() == head


@pytest.mark.transfer
def test_a_cut_download_goes_on_where_it_stopped(hub, api, repo_id, download):
    content = os.urandom(11_000_000)
    api.create_repo(repo_id)
    api.upload_file(repo_id=repo_id, path_in_repo="weights.bin", path_or_fileobj=content)
    # The client writes pieces of 10 MiB.
    hub.fault(*DOWNLOAD, cut_after=10_600_000)
    assert download(repo_id) == content
    tries = sent(hub, *DOWNLOAD)
    assert len(tries) == 2 and tries[1].status == 206


@pytest.mark.transfer
def test_ranges(hub, api, repository):
    """By plain HTTP, whichever way the file went up."""
    content = os.urandom(100_000)
    api.upload_file(repo_id=repository.id, path_in_repo="new.bin", path_or_fileobj=content)
    url = f"{hub.endpoint}/{repository.id}/resolve/main/new.bin"
    for given, expected in (("5-9", content[5:10]), ("99990-", content[-10:]), ("-3", content[-3:])):
        request = urllib.request.Request(url, headers={"Range": f"bytes={given}"})
        with urllib.request.urlopen(request) as response:
            assert response.status == 206 and response.read() == expected
    with pytest.raises(urllib.error.HTTPError, match="416"):
        urllib.request.urlopen(urllib.request.Request(url, headers={"Range": "bytes=100000-"}))


def test_what_is_missing_is_remembered_as_missing(api, repository, tmp_path):
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download(repository.id, "none.json", cache_dir=tmp_path)
    assert try_to_load_from_cache(repository.id, "none.json", cache_dir=tmp_path) is _CACHED_NO_EXIST
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download(repository.id, "config.json", revision="none", cache_dir=tmp_path)
    with pytest.raises(RepositoryNotFoundError):
        hf_hub_download("alice/none", "config.json", cache_dir=tmp_path)


def test_waits_and_storms(hub, api, repository, download):
    hub.fault("POST", "/preupload/", status=429, headers={"Retry-After": "0"})
    hub.fault("POST", "/preupload/", status=503)
    api.upload_file(repo_id=repository.id, path_in_repo="a.txt", path_or_fileobj=b"a")
    assert [request.status for request in sent(hub, "POST", "/preupload/")] == [429, 503, 200]
    hub.fault("POST", "/api/repos/create", status=503, body=b'{"error": "Storm"}', times=None)
    with pytest.raises(HfHubHTTPError, match="503[^$]*Storm"):
        api.create_repo("alice/stormy")
    hub.clear()
    api.create_repo("alice/stormy")


def test_tampered_content_and_delays(hub, api, repository, download):
    content = os.urandom(1000)
    repository.commit({"other.bin": content})
    hub.fault("GET", "/storage/", change=lambda body: body[:-1] + b"!")
    assert download(repository.id, "other.bin") == content[:-1] + b"!"
    hub.fault("GET", "/whoami", delay=0.3)
    begin = time.monotonic()
    whoami()
    assert time.monotonic() - begin > 0.3


def test_who_leaves_loopback_is_seen_and_who_leaks_a_token_too(hub, alice, tmp_path):
    program = "import urllib.request as r, huggingface_hub as h\ntry: r.urlopen('https://example.org/')\nexcept OSError: pass"
    environment = hub.environment(alice.token) | {"HF_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert hub.strangers == ["CONNECT example.org:443 HTTP/1.0"] or hub.strangers == [
        "CONNECT example.org:443 HTTP/1.1"
    ]
    request = urllib.request.Request(
        hub.transfers.url("0"), headers={"Authorization": f"Bearer {alice.token}"}
    )
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request)
    hub.clear()
    assert [(request.host.split(":")[0], request.authorization) for request in hub.leaks] == [
        ("localhost", True)
    ]
    hub.forget_offences()


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_dataset_is_loaded_by_configuration_split_and_revision(hub, repo_id, form, tmp_path):
    from datasets import Dataset

    card = "---\nconfigs:\n- config_name: de-en\n  data_files:\n"
    card += (
        "".join(f"  - {{split: {split}, path: de-en/{split}-*}}\n" for split in ("train", "test")) + "---\n"
    )
    repository = hub.create_repository(repo_id, type="dataset")
    for revision in ("one", "two"):
        contents = {"README.md": card.encode()}
        for split in ("train", "test"):
            rows = [{"translation": {"de": f"{revision} {split} {i}", "en": "x"}} for i in range(3)]
            path = tmp_path / f"{revision}{split}"
            data = Dataset.from_list(rows)
            data.to_parquet(path) if form == "parquet" else data.to_json(path)
            contents[f"de-en/{split}-00000.{form}"] = path.read_bytes()
        sha = repository.commit(contents)
        repository.git.set_ref(f"refs/tags/{revision}", sha)
    for revision in ("one", "two", repository.head("one")):
        data = load_dataset(repo_id, "de-en", split="test", revision=revision)
        word = "two" if revision == "two" else "one"
        assert [row["de"] for row in data["translation"]] == [f"{word} test {i}" for i in range(3)]
