"""The Hub's API: accounts, repositories, refs, listings, pull requests, uploads and downloads."""

import base64
import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from http.client import HTTPMessage
from urllib.parse import parse_qs, unquote

from local_hub import cards
from local_hub.storage import File, is_large

REFERENCE = re.compile(r"(?!.*\.\.)\w[\w./-]*")
NOT_ALLOWED = "You don't have the required permissions to perform this action"


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class RefusalError(Exception):
    """An answer other than 200. The client chooses its exception by the error code."""

    def __init__(self, status: int, message: str, code: str = "", url: str = "", **headers: str):
        super().__init__(message)
        self.reply = json_reply({"error": message, "url": url}, status)
        self.reply.headers |= headers | {"X-Error-Message": message, "X-Error-Code": code}


def json_reply(content, status: int = 200, **headers: str) -> Reply:
    return Reply(
        status, json.dumps(content, default=str).encode(), {"Content-Type": "application/json", **headers}
    )


@dataclass
class Call:
    """A request. `user` is None without a token; `role` is "read" or "write"."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: HTTPMessage
    body: bytes = b""
    user: str | None = None
    role: str = "read"

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    def flag(self, name: str) -> bool:
        return self.query.get(name, [""])[0].lower() in ("true", "1")


# Rights.


def need_login(call: Call) -> None:
    if call.user is None:
        raise RefusalError(401, "Invalid username or password.")


def need_files(call: Call, repository) -> None:
    """Refuses users who may not read the files of a gated repository."""
    if not repository.gated or call.user == repository.namespace or call.user in repository.granted:
        return
    message = f"Access to model {repository.id} is restricted"
    if call.user is None:
        message += ". You must have access to it and be authenticated to access it. Please log in."
        raise RefusalError(401, message, "GatedRepo")
    message += " and you are not in the authorized list. Visit the repository's page to ask for access."
    raise RefusalError(403, message, "GatedRepo")


def need_write(call: Call, namespace: str, message: str = NOT_ALLOWED) -> None:
    need_login(call)
    if call.role != "write" or call.user != namespace:
        raise RefusalError(403, message)


def need_commit(call: Call, repository, revision: str, creates_pr: bool) -> None:
    """Refuses users who may not commit to the repository. Everybody may open a pull request, and change an
    own pull request.
    """
    need_login(call)
    if call.user != repository.namespace and not creates_pr and not repository.is_author(call.user, revision):
        raise RefusalError(403, "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")
    need_write(call, call.user)


def repository_of(hub, call: Call, type: str | None, id: str):
    """The repository of a request, if the sender may know that the repository exists."""
    repository = hub.repositories.get(((type or "model").removesuffix("s"), id))
    if repository is not None and (not repository.private or call.user == repository.namespace):
        return repository
    if call.user is None:
        # The real Hub sends no error code in this answer. The client reads the 401 of an https address as a
        # missing repository.
        raise RefusalError(401, "Invalid username or password.", "RepoNotFound")
    raise RefusalError(404, "Repository not found", "RepoNotFound")


def head_of(repository, revision: str) -> str:
    sha = repository.find(revision)
    if sha is None:
        raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    return sha


# Accounts and repositories.


def whoami(hub, call: Call) -> Reply:
    need_login(call)
    token = {"type": "access_token", "accessToken": {"displayName": "tests", "role": call.role}}
    return json_reply({"type": "user", "name": call.user, "fullname": call.user, "orgs": [], "auth": token})


def create_repo(hub, call: Call) -> Reply:
    given = call.json()
    type = given.get("type", "model")
    namespace = given.get("organization") or call.user
    need_write(
        call, namespace, f'You don\'t have the rights to create a {type} under the namespace "{namespace}"'
    )
    id = f"{namespace}/{given['name']}"
    if (type, id) in hub.repositories:
        url = f"{hub.endpoint}/{hub.repository(id, type).prefix}"
        raise RefusalError(409, f"You already created this {type} repo", url=url)
    is_private = bool(given.get("private")) or given.get("visibility") == "private"
    repository = hub.create_repository(id, type=type, private=is_private)
    return json_reply({"url": f"{hub.endpoint}/{repository.prefix}"})


def validate_yaml(hub, call: Call) -> Reply:
    errors = [{"message": text} for text in cards.problems(call.json()["content"])]
    return json_reply({"errors": errors, "warnings": []}, 400 if errors else 200)


def info(hub, call: Call, repository, revision: str = "main") -> Reply:
    sha = head_of(repository, revision)
    files = repository.entries(sha)
    try:
        fields = cards.metadata(files["README.md"].text.decode()) if "README.md" in files else {}
    except ValueError:
        fields = {}
    siblings = []
    for path, file in files.items():
        sibling = {"rfilename": path}
        if call.flag("blobs"):
            sibling |= {"size": file.size, "blobId": file.oid, "lfs": file.lfs if file.sha256 else None}
        siblings.append(sibling)
    names = ("pipeline_tag", "library_name", "model-index")
    content = {
        **{name: fields[name] for name in names if name in fields},
        "_id": hashlib.md5(repository.id.encode()).hexdigest()[:24],
        "id": repository.id,
        "sha": sha,
        "private": repository.private,
        "gated": repository.gated,
        "disabled": False,
        "tags": cards.tags(fields),
        "cardData": fields,
        "lastModified": timestamp(repository.log(sha)[0].seconds),
        "siblings": siblings,
    }
    return json_reply(content)


def timestamp(seconds: float) -> str:
    """A date as the client parses it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def auth_check(hub, call: Call, repository, write: str | None) -> Reply:
    if write:
        need_write(call, repository.namespace)
    else:
        need_files(call, repository)
    return json_reply({})


# Refs and listings.


def create_ref(repository, kind: str, name: str, sha: str) -> Reply:
    if name.startswith("refs/") or not REFERENCE.fullmatch(name):
        raise RefusalError(400, f"Invalid reference name: {name}")
    if f"refs/{kind}/{name}" in repository.refs():
        raise RefusalError(409, f"Reference already exists: {name}")
    repository.set_ref(f"refs/{kind}/{name}", sha)
    return json_reply({})


def create_branch(hub, call: Call, repository, branch: str) -> Reply:
    need_write(call, repository.namespace)
    return create_ref(
        repository, "heads", branch, head_of(repository, call.json().get("startingPoint", "main"))
    )


def create_tag(hub, call: Call, repository, revision: str) -> Reply:
    need_write(call, repository.namespace)
    return create_ref(repository, "tags", call.json()["tag"], head_of(repository, revision))


def refs(hub, call: Call, repository) -> Reply:
    def under(prefix: str) -> list[dict]:
        return [
            {"name": name.removeprefix(prefix), "ref": name, "targetCommit": sha}
            for name, sha in repository.refs().items()
            if name.startswith(prefix)
        ]

    content = {"branches": under("refs/heads/"), "tags": under("refs/tags/"), "converts": []}
    if call.flag("include_prs"):
        content["pullRequests"] = under("refs/pr/")
    return json_reply(content)


def commits(hub, call: Call, repository, revision: str) -> Reply:
    found = []
    for commit in repository.log(head_of(repository, revision)):
        title, _, message = commit.message.partition("\n\n")
        dated = {"date": timestamp(commit.seconds), "authors": [{"user": commit.author}]}
        found.append({"id": commit.sha, "title": title, "message": message, **dated})
    return json_reply(found)


def entries_of(hub, repository, revision: str) -> dict[str, dict]:
    """The listing of all files and folders of a commit by path."""
    entries = {}
    for path, file in repository.entries(head_of(repository, revision)).items():
        folders = path.split("/")[:-1]
        for depth in range(1, len(folders) + 1):
            folder = "/".join(folders[:depth])
            entries[folder] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
        entries[path] = {"type": "file", "oid": file.oid, "size": file.size, "path": path}
        if file.sha256:
            entries[path]["lfs"] = file.lfs
        if file.sha256 in hub.xet.hashes:
            entries[path]["xetHash"] = hub.xet.hashes[file.sha256]
    return entries


def tree(hub, call: Call, repository, revision: str, path: str | None) -> Reply:
    need_files(call, repository)
    prefix = f"{path}/" if path else ""
    entries = entries_of(hub, repository, revision)
    inside = {place: entry for place, entry in entries.items() if place.startswith(prefix)}
    if path and not inside:
        raise RefusalError(404, f"{path} does not exist on {revision}", "EntryNotFound")
    is_deep = call.flag("recursive")
    return json_reply(
        [inside[place] for place in sorted(inside) if is_deep or "/" not in place[len(prefix) :]]
    )


def paths_info(hub, call: Call, repository, revision: str) -> Reply:
    need_files(call, repository)
    entries = entries_of(hub, repository, revision)
    paths = parse_qs(call.body.decode()).get("paths", [])
    return json_reply([entries[path] for path in paths if path in entries])


# Uploads.


def preupload(hub, call: Call, repository, revision: str) -> Reply:
    need_commit(call, repository, revision, call.flag("create_pr"))
    present = repository.entries(head_of(repository, revision))
    decided = []
    for file in call.json()["files"]:
        mode = "lfs" if is_large(file["path"], file["size"]) else "regular"
        entry = {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
        if file["path"] in present:
            entry["oid"] = present[file["path"]].etag
        decided.append(entry)
    return json_reply({"files": decided})


def xet_token(hub, call: Call, repository, role: str, revision: str) -> Reply:
    if role == "read":
        need_files(call, repository)
    else:
        need_commit(call, repository, revision, call.flag("create_pr"))
    return hub.xet.token(role)


def lfs_batch(hub, call: Call, type: str | None, id: str) -> Reply:
    given = call.json()
    repository = repository_of(hub, call, type, id)
    # This request of the client does not tell whether the client opens a pull request. If the client opens no
    # pull request, the commit is refused later.
    need_commit(call, repository, given.get("ref", {}).get("name", "main"), creates_pr=True)
    objects = []
    for wanted in given["objects"]:
        entry = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in hub.objects:
            entry["actions"] = {"upload": {"href": storage_url(hub, wanted["oid"])}}
        objects.append(entry)
    return json_reply({"transfer": "basic", "objects": objects})


def commit(hub, call: Call, repository, revision: str) -> Reply:
    creates_pr = call.flag("create_pr")
    need_commit(call, repository, revision, creates_pr)
    operations = [json.loads(line) for line in call.body.splitlines() if line.strip()]
    header = next(operation["value"] for operation in operations if operation["key"] == "header")
    message = "\n\n".join(text for text in (header.get("summary"), header.get("description")) if text)
    with repository.lock:
        head = head_of(repository, revision)
        ref = revision if revision.startswith("refs/") else f"refs/heads/{revision}"
        if not creates_pr and ref not in repository.refs():
            raise RefusalError(404, f"There is no branch {revision}", "RevisionNotFound")
        if header.get("parentCommit", head) != head:
            raise RefusalError(412, "A commit has happened since. Please refresh and try again.")
        changes = changes_of(hub, repository, head, operations)
        content = {"success": True}
        if creates_pr:
            number = repository.open_pull_request(call.user, head)
            ref = f"refs/pr/{number}"
            content["pullRequestUrl"] = f"{hub.endpoint}/{repository.prefix}/discussions/{number}"
        sha = repository.write(ref, changes, call.user, message)
    return json_reply(
        {**content, "commitOid": sha, "commitUrl": f"{hub.endpoint}/{repository.prefix}/commit/{sha}"}
    )


def changes_of(hub, repository, head: str, operations: list[dict]) -> dict[str, File | None]:
    """The file that the operations of a commit leave at each path, or None."""
    changes: dict[str, File | None] = {}
    for operation in operations:
        value = operation["value"]
        if operation["key"] == "file":
            content = base64.b64decode(value["content"])
            changes[value["path"]] = File(content, len(content))
        elif operation["key"] == "lfsFile":
            changes[value["path"]] = hub.uploaded(value["path"], value["oid"])
        elif operation["key"] == "deletedFile":
            if value["path"] not in repository.entries(head):
                raise RefusalError(
                    404, f'A file with the name "{value["path"]}" does not exist', "EntryNotFound"
                )
            changes[value["path"]] = None
    return changes


# Downloads.


def resolve(hub, call: Call, type: str | None, id: str, revision: str, path: str) -> Reply:
    repository = repository_of(hub, call, type, id)
    need_files(call, repository)
    sha = head_of(repository, revision)
    file = repository.entries(sha).get(path)
    commit = {"X-Repo-Commit": sha}
    if file is None:
        raise RefusalError(404, f"{path} does not exist on {revision}", "EntryNotFound", **commit)
    headers = {**commit, "Accept-Ranges": "bytes", "ETag": f'"{file.etag}"'}
    if not file.sha256:
        return Reply(200, file.text, headers)
    headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(file.size)}
    headers["Location"] = storage_url(hub, file.sha256)
    if file.sha256 in hub.xet.hashes:
        route = f"{hub.endpoint}/api/{repository.type}s/{repository.id}/xet-read-token/{sha}"
        headers |= {"X-Xet-Hash": hub.xet.hashes[file.sha256], "X-Xet-Refresh-Route": route}
    return Reply(302, b"", headers)


# Large files are at another origin, as on a CDN. Their addresses authorise themselves.


def storage_url(hub, sha256: str) -> str:
    return f"{hub.storage_origin}/storage/{hub.signature}/{sha256}"


def store(hub, call: Call, signature: str, sha256: str) -> Reply:
    if signature != hub.signature:
        raise RefusalError(403, "Wrong signature")
    if hashlib.sha256(call.body).hexdigest() != sha256:
        raise RefusalError(400, "The content does not have the sha256 that was announced")
    hub.objects[sha256] = call.body
    return json_reply({})


def fetch(hub, call: Call, signature: str, sha256: str) -> Reply:
    if signature != hub.signature:
        raise RefusalError(403, "Wrong signature")
    return Reply(200, hub.objects[sha256], {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes"})


def find_route(routes: list, call: Call, path: str):
    """The function of the first route that fits, with the groups of its pattern.

    The path is matched raw and decoded afterwards, because a branch with a slash is one segment.
    """
    for methods, pattern, function in routes:
        found = re.fullmatch(pattern, path)
        if found and call.method in methods.split("|"):
            return function, [value and unquote(value) for value in found.groups()]
    raise RefusalError(404, f"There is no {call.method} {call.path} here")


def answer_api(hub, call: Call) -> Reply:
    place = re.match(r"/api/(models|datasets)/([\w.-]+/[\w.-]+)(?=/|$)", call.path)
    if place is None:
        function, names = find_route(PLAIN_ROUTES, call, call.path)
        return function(hub, call, *names)
    function, names = find_route(REPOSITORY_ROUTES, call, call.path[place.end() :])
    return function(hub, call, repository_of(hub, call, *place.groups()), *names)


PLAIN_ROUTES = [
    ("GET", r"/api/whoami-v2", whoami),
    ("POST", r"/api/repos/create", create_repo),
    ("POST", r"/api/validate-yaml", validate_yaml),
    ("POST", r"/(?:(datasets)/)?([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", lfs_batch),
    ("GET|HEAD", r"/(?:(datasets)/)?([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", resolve),
]
# The functions of these routes receive the repository instead of its type and name.
REPOSITORY_ROUTES = [
    ("GET", r"", info),
    ("GET", r"/revision/([^/]+)", info),
    ("GET", r"/auth-check(?:/(write))?", auth_check),
    ("POST", r"/branch/([^/]+)", create_branch),
    ("POST", r"/tag/([^/]+)", create_tag),
    ("GET", r"/refs", refs),
    ("GET", r"/commits/([^/]+)", commits),
    ("GET", r"/tree/([^/]+)(?:/(.*))?", tree),
    ("POST", r"/paths-info/([^/]+)", paths_info),
    ("POST", r"/preupload/([^/]+)", preupload),
    ("GET", r"/xet-(read|write)-token/([^/]+)", xet_token),
    ("POST", r"/commit/([^/]+)", commit),
]
STORAGE_ROUTES = [
    ("PUT", r"/storage/(\w+)/(\w+)", store),
    ("GET|HEAD", r"/storage/(\w+)/(\w+)", fetch),
]
