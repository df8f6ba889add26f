"""The Hub's API: accounts, repositories, refs, listings, pull requests, uploads and downloads."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from http.client import HTTPMessage
from urllib.parse import unquote

from local_hub.repositories import Repository, etag, is_large

XET_EXPIRY = "4000000000"


@dataclass
class Reply:
    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)


def json_reply(content, status: int = 200, **headers: str) -> Reply:
    return Reply(status, json.dumps(content).encode(), {"Content-Type": "application/json", **headers})


class RefusalError(Exception):
    """An answer other than 200. The client chooses its exception by the error code."""

    def __init__(self, status: int, message: str, code: str = "", url: str = "", **headers: str):
        super().__init__(message)
        headers |= {"X-Error-Message": message, "X-Error-Code": code}
        self.reply = json_reply({"error": message, "url": url}, status, **headers)


@dataclass
class Call:
    """A request. `user` is None without a token; `role` is "read" or "write"."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: HTTPMessage
    body: bytes
    user: str | None = None
    role: str = "read"

    def json(self) -> dict:
        return json.loads(self.body)

    def flag(self, name: str) -> bool:
        return self.query.get(name, [""])[0].lower() in ("true", "1")


def need_files(call: Call, repository: Repository) -> None:
    """Refuse users who may not read the files of a gated repository."""
    if repository.gated and call.user != repository.owner:
        message = f"Access to model {repository.id} is restricted"
        raise RefusalError(403 if call.user else 401, message, "GatedRepo")


def need_write(call: Call, *users: str) -> None:
    """Refuse all users but these, and tokens that may only read."""
    if call.role != "write" or call.user not in users:
        raise RefusalError(403, "You don't have the required permissions to perform this action")


def need_commit(call: Call, repository: Repository, revision: str) -> None:
    """Every user may open a pull request and commit to this pull request."""
    author = call.user if call.flag("create_pr") else repository.authors.get(revision)
    need_write(call, repository.owner, author or repository.owner)


def repository_of(hub, call: Call, types: str, id: str) -> Repository:
    """The repository of a request, if the sender may know that the repository exists."""
    repository = hub.repositories.get((types.removesuffix("s"), id))
    if repository is None or (repository.private and call.user != repository.owner):
        # The real Hub sends no error code with 401, but the client reads it only at https addresses.
        raise RefusalError(404 if call.user else 401, "Repository not found", "RepoNotFound")
    return repository


def head_of(repository: Repository, revision: str) -> str:
    sha = repository.find(revision)
    if sha is None:
        raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    return sha


def whoami(hub, call: Call) -> Reply:
    token = {"type": "access_token", "accessToken": {"displayName": "tests", "role": call.role}}
    return json_reply({"type": "user", "name": call.user, "orgs": [{"name": "team"}], "auth": token})


def create_repo(hub, call: Call) -> Reply:
    given = call.json()
    type = given.get("type", "model")
    owner = given.get("organization") or call.user
    need_write(call, owner)
    id = f"{owner}/{given['name']}"
    if (type, id) in hub.repositories:
        url = f"{hub.endpoint}/{hub.repository(id, type).path}"
        raise RefusalError(409, f"You already created this {type} repo", url=url)
    # Older clients send `private`.
    is_private = given.get("visibility") == "private" or bool(given.get("private"))
    repository = hub.create_repository(id, type=type, private=is_private)
    return json_reply({"url": f"{hub.endpoint}/{repository.path}"})


def validate_yaml(hub, call: Call) -> Reply:
    """Accept the metadata of every model card. A test that needs a rejection adds a `Fault`."""
    return json_reply({"errors": [], "warnings": []})


def info(hub, call: Call, repository: Repository, revision: str | None) -> Reply:
    # The client may be imported only after the tests have set its environment.
    from huggingface_hub import ModelCard

    sha = head_of(repository, revision or "main")
    files = repository.files(sha)
    fields = {}
    if "README.md" in files:
        fields = ModelCard(files["README.md"].decode()).data.to_dict()
    siblings = [{"rfilename": path} for path in files]
    content = {"id": repository.id, "sha": sha, "private": repository.private, "gated": repository.gated}
    content |= {"cardData": fields, "pipeline_tag": fields.get("pipeline_tag"), "siblings": siblings}
    return json_reply(content)


def check_rights(hub, call: Call, repository: Repository, write: str | None) -> Reply:
    if write:
        need_write(call, repository.owner)
    need_files(call, repository)
    return Reply()


def create_ref(repository: Repository, kind: str, name: str, sha: str) -> Reply:
    if re.fullmatch(r"[\w/-]+(\.[\w/-]+)*", name) is None:
        raise RefusalError(400, f"Invalid reference name: {name}")
    if f"refs/{kind}/{name}" in repository.refs:
        raise RefusalError(409, f"Reference already exists: {name}")
    repository.refs[f"refs/{kind}/{name}"] = sha
    return Reply()


def create_branch(hub, call: Call, repository: Repository, branch: str) -> Reply:
    need_write(call, repository.owner)
    return create_ref(repository, "heads", branch, repository.head())


def create_tag(hub, call: Call, repository: Repository, revision: str) -> Reply:
    need_write(call, repository.owner)
    return create_ref(repository, "tags", call.json()["tag"], head_of(repository, revision))


def refs(hub, call: Call, repository: Repository) -> Reply:
    kinds = {"heads": "branches", "tags": "tags", "pr": "pullRequests"}
    content: dict[str, list] = {"branches": [], "tags": [], "pullRequests": [], "converts": []}
    for ref, sha in repository.refs.items():
        _, kind, name = ref.split("/", 2)
        content[kinds[kind]].append({"name": name, "ref": ref, "targetCommit": sha})
    return json_reply(content)


def tree(hub, call: Call, repository: Repository, revision: str, path: str | None) -> Reply:
    """The files and folders in a folder of a commit."""
    need_files(call, repository)
    prefix = f"{path}/" if path else ""
    entries = {}
    for place, content in repository.files(head_of(repository, revision)).items():
        rest = place.removeprefix(prefix)
        if not place.startswith(prefix):
            continue
        if "/" in rest:
            folder = prefix + rest.split("/")[0]
            entries[folder] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
        if "/" not in rest or call.flag("recursive"):
            hash = etag(place, content)
            entries[place] = {"type": "file", "oid": hash, "size": len(content), "path": place}
            if is_large(place, len(content)):
                entries[place]["lfs"] = {"oid": hash, "size": len(content), "pointerSize": 130}
            if hash in hub.xet.hashes:
                entries[place]["xetHash"] = hub.xet.hashes[hash]
    if not entries:
        raise RefusalError(404, f"{path} does not exist on {revision}", "EntryNotFound")
    return json_reply(list(entries.values()))


def preupload(hub, call: Call, repository: Repository, revision: str) -> Reply:
    need_commit(call, repository, revision)
    present = repository.files(head_of(repository, revision))
    decided = []
    for file in call.json()["files"]:
        path = file["path"]
        mode = "lfs" if is_large(path, file["size"]) else "regular"
        entry = {"path": path, "uploadMode": mode, "shouldIgnore": False}
        if path in present:
            entry["oid"] = etag(path, present[path])
        decided.append(entry)
    return json_reply({"files": decided})


def lfs_batch(hub, call: Call, repository: Repository) -> Reply:
    objects = []
    for wanted in call.json()["objects"]:
        if wanted["oid"] not in hub.objects:
            wanted["actions"] = {"upload": {"href": f"{hub.endpoint}/storage/{wanted['oid']}"}}
        objects.append(wanted)
    return json_reply({"transfer": "basic", "objects": objects})


def store(hub, call: Call) -> Reply:
    hub.objects[hashlib.sha256(call.body).hexdigest()] = call.body
    return Reply()


def xet_token(hub, call: Call, repository: Repository, role: str, revision: str) -> Reply:
    if role == "read":
        need_files(call, repository)
    else:
        need_commit(call, repository, revision)
    # Uploads read the body of the answer, and downloads read the headers.
    headers = {
        "X-Xet-Access-Token": "any",
        "X-Xet-Token-Expiration": XET_EXPIRY,
        "X-Xet-Cas-Url": hub.xet.address,
    }
    content = {"accessToken": "any", "exp": int(XET_EXPIRY), "casUrl": hub.xet.address}
    return json_reply(content, **headers)


def commit(hub, call: Call, repository: Repository, revision: str) -> Reply:
    need_commit(call, repository, revision)
    head = head_of(repository, revision)
    title = ""
    changes: dict[str, bytes | None] = {}
    for line in call.body.splitlines():
        operation = json.loads(line)
        value = operation["value"]
        if operation["key"] == "header":
            title = value["summary"]
        elif operation["key"] == "file":
            changes[value["path"]] = base64.b64decode(value["content"])
        elif operation["key"] == "lfsFile":
            changes[value["path"]] = hub.uploaded(value["oid"])
        elif operation["key"] == "deletedFile":
            changes[value["path"]] = None
    reply = {"success": True}
    if call.flag("create_pr"):
        number = len(repository.authors) + 1
        revision = f"refs/pr/{number}"
        repository.authors[revision] = call.user
        repository.refs[revision] = head
        reply["pullRequestUrl"] = f"{hub.endpoint}/{repository.path}/discussions/{number}"
    sha = repository.commit(changes, title, revision)
    return json_reply(
        reply | {"commitOid": sha, "commitUrl": f"{hub.endpoint}/{repository.path}/commit/{sha}"}
    )


def resolve(hub, call: Call, repository: Repository, revision: str, path: str) -> Reply:
    need_files(call, repository)
    sha = head_of(repository, revision)
    content = repository.files(sha).get(path)
    headers = {"X-Repo-Commit": sha}
    if content is None:
        raise RefusalError(404, f"{path} does not exist on {revision}", "EntryNotFound", **headers)
    hash = etag(path, content)
    if hash in hub.xet.hashes:
        route = f"{hub.endpoint}/api/{repository.type}s/{repository.id}/xet-read-token/{sha}"
        headers |= {"X-Xet-Hash": hub.xet.hashes[hash], "X-Xet-Refresh-Route": route}
    return Reply(200, content, headers | {"Accept-Ranges": "bytes", "ETag": f'"{hash}"'})


# The paths of repositories: /user/name and /datasets/user/name, with or without /api (there, models are
# /models/user/name).
REPOSITORY = r"(?:/api)?(?:/(models|datasets|spaces))?/(\w+/[\w-]+)"
PLAIN_ROUTES = [
    ("GET", "/api/whoami-v2", whoami),
    ("POST", "/api/repos/create", create_repo),
    ("POST", "/api/validate-yaml", validate_yaml),
    ("PUT", r"/storage/\w+", store),
]
REPOSITORY_ROUTES = [
    ("GET", "(?:/revision/([^/]+))?", info),
    ("GET", "/auth-check(?:/(write))?", check_rights),
    ("POST", "/branch/([^/]+)", create_branch),
    ("POST", "/tag/([^/]+)", create_tag),
    ("GET", "/refs", refs),
    ("GET", "/tree/([^/]+)(?:/(.*))?", tree),
    ("POST", "/preupload/([^/]+)", preupload),
    ("POST", r"\.git/info/lfs/objects/batch", lfs_batch),
    ("GET", "/xet-(read|write)-token/([^/]+)", xet_token),
    ("POST", "/commit/([^/]+)", commit),
    ("GET|HEAD", "/resolve/([^/]+)/(.+)", resolve),
]


def answer(hub, call: Call) -> Reply:
    for method, pattern, function in PLAIN_ROUTES:
        if call.method == method and re.fullmatch(pattern, call.path):
            return function(hub, call)
    for methods, pattern, function in REPOSITORY_ROUTES:
        found = re.fullmatch(REPOSITORY + pattern, call.path)
        if found and call.method in methods.split("|"):
            type, id, *names = found.groups()
            repository = repository_of(hub, call, type or "models", id)
            # A path is decoded after it was matched, because a branch with a slash is one segment.
            return function(hub, call, repository, *[unquote(name) if name else None for name in names])
    raise RefusalError(404, f"There is no {call.method} {call.path} here")
