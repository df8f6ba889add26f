"""The Hub's API: accounts, repositories, refs, listings, pull requests, uploads and downloads."""

import base64
import hashlib
import json
import re
from urllib.parse import parse_qs, quote

from local_hub import cards
from local_hub.accounts import need_commit, need_files, need_login, need_sight, need_write
from local_hub.git import File, pointer
from local_hub.replies import RefusalError, Reply, json_reply
from local_hub.repositories import timestamp

REFERENCE = re.compile(r"(?!.*\.\.)\w[\w./-]*")
NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,94}[A-Za-z0-9_]|[A-Za-z0-9_]")


def whoami(hub, call) -> Reply:
    need_login(call.visitor)
    return json_reply(hub.accounts.whoami(call.visitor))


def create_repo(hub, call) -> Reply:
    given = call.json()
    need_login(call.visitor)
    namespace, name, type = (
        given.get("organization") or call.visitor.name,
        given["name"],
        given.get("type", "model"),
    )
    if call.visitor.role != "write" or namespace not in call.visitor.namespaces:
        raise RefusalError(
            403, f'You don\'t have the rights to create a {type} under the namespace "{namespace}"'
        )
    if not NAME.fullmatch(name) or name.endswith((".git", ".ipynb")):
        raise RefusalError(400, f"Invalid repo name: {name}")
    id = f"{namespace}/{name}"
    existing = hub.repositories.get((type, id))
    if existing:
        raise RefusalError(
            409, f"You already created this {type} repo", url=f"{hub.endpoint}/{existing.prefix}"
        )
    is_private = given.get("private") or given.get("visibility") == "private"
    repository = hub.create_repository(id, type=type, private=bool(is_private))
    return json_reply({"url": f"{hub.endpoint}/{repository.prefix}", "name": id, "id": id})


def validate_yaml(hub, call) -> Reply:
    errors, warnings = cards.problems(call.json()["content"])
    content = {
        "errors": [{"message": text} for text in errors],
        "warnings": [{"message": text} for text in warnings],
    }
    return json_reply(content, 400 if errors else 200)


def repository_of(hub, call, type: str, id: str):
    """The repository of a request, if its sender may know of it."""
    repository = hub.repositories.get((type.removesuffix("s"), id))
    need_sight(call.visitor, repository)
    return repository


def info(hub, call, repository, revision: str | None = None) -> Reply:
    content = _info(repository, revision or "main", call.flag("blobs"))
    expand = call.query.get("expand", []) + call.query.get("expand[]", [])
    if expand:
        content = {name: value for name, value in content.items() if name in {"_id", "id", *expand}}
    return json_reply(content)


def _info(repository, revision: str, blobs: bool) -> dict:
    sha = repository.head(revision)
    files = repository.git.files(sha)
    try:
        fields = cards.metadata(repository.read(files["README.md"]).decode()) if "README.md" in files else {}
    except ValueError:
        fields = {}
    content = {"_id": hashlib.md5(repository.id.encode()).hexdigest()[:24], "id": repository.id, "sha": sha}
    content |= {"author": repository.namespace, "private": repository.private, "gated": repository.gated}
    content |= {"disabled": False, "downloads": 0, "likes": 0, "tags": cards.tags(fields), "cardData": fields}
    content["lastModified"] = timestamp(repository.git.log(sha)[0].seconds)
    content["createdAt"] = timestamp(repository.created)
    if repository.type == "model":
        content["modelId"] = repository.id
        content |= {
            name: fields[name] for name in ("pipeline_tag", "library_name", "model-index") if name in fields
        }
    content["siblings"] = [_sibling(file, blobs) for file in files.values()]
    return json.loads(json.dumps(content, default=str))


def _sibling(file: File, blobs: bool) -> dict:
    content = {"rfilename": file.path}
    if blobs:
        content |= {"size": file.size, "blobId": file.oid}
        if file.sha256:
            content["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
    return content


def auth_check(hub, call, repository, write: str | None) -> Reply:
    need_write(call.visitor, repository) if write else need_files(call.visitor, repository)
    return json_reply({})


def create_branch(hub, call, repository, branch: str) -> Reply:
    need_write(call.visitor, repository)
    if branch.startswith("refs/") or not REFERENCE.fullmatch(branch):
        raise RefusalError(400, f"Invalid reference name: {branch}")
    if f"refs/heads/{branch}" in repository.refs():
        raise RefusalError(409, f"Reference already exists: {branch}")
    repository.git.set_ref(f"refs/heads/{branch}", repository.head(call.json().get("startingPoint", "main")))
    return json_reply({})


def create_tag(hub, call, repository, revision: str) -> Reply:
    need_write(call.visitor, repository)
    given = call.json()
    if not REFERENCE.fullmatch(given["tag"]):
        raise RefusalError(400, f"Invalid reference name: {given['tag']}")
    if f"refs/tags/{given['tag']}" in repository.refs():
        raise RefusalError(409, f"Reference already exists: {given['tag']}")
    repository.git.tag(given["tag"], repository.head(revision), given.get("message"))
    return json_reply({})


def refs(hub, call, repository) -> Reply:
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


def commits(hub, call, repository, revision: str) -> Reply:
    found = [
        {"id": c.sha, "title": c.title, "message": c.message, "date": timestamp(c.seconds)}
        | {"authors": [{"user": c.author}]}
        for c in repository.git.log(repository.head(revision))
    ]
    return json_reply(found)


def tree(hub, call, repository, revision: str, path: str | None) -> Reply:
    need_files(call.visitor, repository)
    sha, prefix = repository.head(revision), f"{path}/" if path else ""
    entries = _entries(hub, repository, sha)
    inside = {place: entry for place, entry in entries.items() if place.startswith(prefix)}
    if path and not inside:
        raise RefusalError(404, f"{path} does not exist on {revision}", "EntryNotFound")
    is_deep = call.flag("recursive")
    chosen = [entry for place, entry in sorted(inside.items()) if is_deep or "/" not in place[len(prefix) :]]
    return json_reply(chosen, **{"X-Repo-Commit": sha})


def _entries(hub, repository, sha: str) -> dict[str, dict]:
    """The listing of all files and folders of a commit by path."""
    entries = {
        path: {"type": "directory", "oid": oid, "size": 0, "path": path}
        for path, oid in repository.git.folders(sha).items()
    }
    for path, file in repository.git.files(sha).items():
        entries[path] = {"type": "file", "oid": file.oid, "size": file.size, "path": path}
        if file.sha256:
            entries[path]["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
            if file.sha256 in hub.xet.hashes:
                entries[path]["xetHash"] = hub.xet.hashes[file.sha256]
    return entries


def paths_info(hub, call, repository, revision: str) -> Reply:
    need_files(call.visitor, repository)
    form = parse_qs(call.body.decode())
    entries = _entries(hub, repository, repository.head(revision))
    return json_reply([entries[path] for path in form.get("paths", []) if path in entries])


def preupload(hub, call, repository, revision: str) -> Reply:
    need_commit(call.visitor, repository, revision, call.flag("create_pr"))
    present, decided = repository.git.files(repository.head(revision)), []
    for file in call.json()["files"]:
        large = repository.is_large(file["path"], file["size"], revision)
        entry = {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
        if file["path"] in present:
            entry["oid"] = present[file["path"]].etag
        decided.append(entry)
    return json_reply({"files": decided})


def xet_token(hub, call, repository, role: str, revision: str) -> Reply:
    if role == "read":
        need_files(call.visitor, repository)
    else:
        need_commit(call.visitor, repository, revision, call.flag("create_pr"))
    return hub.xet.token(role)


def lfs_batch(hub, call, prefix: str | None, id: str) -> Reply:
    given = call.json()
    repository = repository_of(hub, call, prefix or "model", id)
    revision = given.get("ref", {}).get("name", "main")
    # The client does not say here whether a pull request is wanted; the commit will be refused if it is not.
    need_commit(call.visitor, repository, revision, create_pr=True)
    objects = []
    for wanted in given["objects"]:
        entry = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in hub.objects:
            verify = {"href": f"{hub.endpoint}/{repository.prefix}.git/info/lfs/objects/verify"}
            upload = hub.transfers.action(wanted["oid"], wanted["size"])
            entry["actions"] = {"upload": upload, "verify": verify}
        objects.append(entry)
    return json_reply({"transfer": "basic", "objects": objects})


def lfs_verify(hub, call, prefix: str | None, id: str) -> Reply:
    given = call.json()
    repository_of(hub, call, prefix or "model", id)
    if given["oid"] not in hub.objects or len(hub.objects.read(given["oid"])) != given["size"]:
        raise RefusalError(404, f"There is no object {given['oid']} of {given['size']} bytes")
    return json_reply({})


def commit(hub, call, repository, revision: str) -> Reply:
    create_pr, author = call.flag("create_pr"), call.visitor.name
    need_commit(call.visitor, repository, revision, create_pr)
    operations = [json.loads(line) for line in call.body.splitlines() if line.strip()]
    header = next(operation["value"] for operation in operations if operation["key"] == "header")
    message = "\n\n".join(text for text in (header.get("summary"), header.get("description")) if text)
    with repository.lock:
        head = repository.head(revision)
        if not create_pr and not {f"refs/heads/{revision}", revision} & repository.refs().keys():
            raise RefusalError(404, f"There is no branch {revision}", "RevisionNotFound")
        if header.get("parentCommit", head) != head:
            raise RefusalError(412, "A commit has happened since. Please refresh and try again.")
        contents = _contents(hub, repository, head, operations)
        content, target = {"success": True}, revision
        if create_pr:
            request = repository.open(author, head)
            content["pullRequestUrl"] = f"{hub.endpoint}/{repository.prefix}/discussions/{request.num}"
            target = request.ref
        sha = repository.write(target, contents, author, message)
    url = f"{hub.endpoint}/{repository.prefix}/commit/{sha}"
    return json_reply(content | {"commitOid": sha, "commitUrl": url, "hookOutput": ""})


def _contents(hub, repository, head: str, operations: list[dict]) -> dict[str, bytes | None]:
    """The contents that the operations of a commit leave at each path."""
    present, contents = repository.git.files(head), {}
    for key, value in ((operation["key"], operation["value"]) for operation in operations):
        path = value.get("path", "")
        if key == "file":
            contents[path] = (
                base64.b64decode(value["content"])
                if value.get("encoding") == "base64"
                else value["content"].encode()
            )
        elif key == "lfsFile":
            contents[path] = _pointer(hub, path, value["oid"])
        elif key == "deletedFile":
            if path not in present:
                raise RefusalError(404, f'A file with the name "{path}" does not exist', "EntryNotFound")
            contents[path] = None
    return contents


def _pointer(hub, path: str, sha256: str) -> bytes:
    """The pointer of a large file, which must have been uploaded, by xet or by LFS."""
    if sha256 not in hub.objects:
        content = hub.xet.content(sha256)
        if content is None:
            raise RefusalError(400, f"The content of {path} (sha256 {sha256}) was never uploaded")
        hub.objects.add(content)
    return pointer(sha256, len(hub.objects.read(sha256)))


def resolve(hub, call, prefix: str | None, id: str, revision: str, path: str) -> Reply:
    repository = repository_of(hub, call, prefix or "model", id)
    need_files(call.visitor, repository)
    sha = repository.head(revision)
    file = repository.git.files(sha).get(path)
    if file is None:
        refusal = RefusalError(404, f"{path} does not exist on {revision}", "EntryNotFound")
        refusal.headers = {"X-Repo-Commit": sha}
        raise refusal
    headers = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes", "ETag": f'"{file.etag}"'}
    name = path.split("/")[-1].replace('"', "'")
    headers["Content-Disposition"] = f"inline; filename*=UTF-8''{quote(name)}"
    if not file.sha256:
        return Reply(200, repository.read(file), headers)
    headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(file.size)}
    headers["Location"] = hub.transfers.url(file.sha256)
    if file.sha256 in hub.xet.hashes:
        route = f"{hub.endpoint}/api/{repository.type}s/{repository.id}/xet-read-token/{sha}"
        headers |= {"X-Xet-Hash": hub.xet.hashes[file.sha256], "X-Xet-Refresh-Route": route}
        headers["Link"] = f'<{route}>; rel="xet-auth"'
    return Reply(302, b"", headers)


REPOSITORY = r"/api/(models|datasets|spaces)/([\w.-]+/[\w.-]+)(?=/|$)"
GIT = r"/(?:(datasets)/)?([\w.-]+/[\w.-]+)\.git/info/lfs/objects"
# Functions of these routes take the groups of the pattern.
PLAIN_ROUTES = [
    ("GET", r"/api/whoami-v2", whoami),
    ("POST", r"/api/repos/create", create_repo),
    ("POST", r"/api/validate-yaml", validate_yaml),
    ("POST", rf"{GIT}/batch", lfs_batch),
    ("POST", rf"{GIT}/verify", lfs_verify),
    ("GET|HEAD", r"/(?:(datasets|spaces)/)?([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", resolve),
]
# Functions of these routes get the repository instead of its type and name.
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
