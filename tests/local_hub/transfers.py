"""Uploads and downloads of large files at the other origin, by addresses that authorise themselves."""

import hashlib
import secrets

from local_hub.replies import RefusalError, Reply, json_reply
from local_hub.repositories import Objects


class Transfers:
    """Larger files are uploaded in parts of `part_size` bytes."""

    def __init__(self, objects: Objects):
        self.objects = objects
        self.origin = ""
        self.part_size = 16 * 1024 * 1024
        self.signature = secrets.token_hex(8)
        self.expected = {}
        self.parts = {}

    def url(self, sha256: str) -> str:
        return f"{self.origin}/storage/{self.signature}/{sha256}"

    def action(self, sha256: str, size: int, in_parts: bool) -> dict:
        """Where and how to upload an object."""
        self.expected[sha256] = size
        action = {"href": self.url(sha256)}
        if in_parts and size > self.part_size:
            count = -(-size // self.part_size)
            header = {f"{part:05}": f"{self.url(sha256)}/{part}" for part in range(1, count + 1)}
            action["header"] = header | {"chunk_size": str(self.part_size)}
        return action

    def upload(self, call, signature: str, sha256: str) -> Reply:
        self._check(signature)
        return self._keep(sha256, call.body)

    def _keep(self, sha256: str, content: bytes) -> Reply:
        if len(content) != self.expected.get(sha256) or hashlib.sha256(content).hexdigest() != sha256:
            raise RefusalError(400, "The content does not have the sha256 and the size that were announced")
        self.objects.add(content)
        return json_reply({})

    def upload_part(self, call, signature: str, sha256: str, part: str) -> Reply:
        self._check(signature)
        self.parts[sha256, int(part)] = call.body
        return Reply(200, b"", {"ETag": f'"{hashlib.md5(call.body).hexdigest()}"'})

    def complete(self, call, signature: str, sha256: str) -> Reply:
        """Put the parts of an upload together."""
        self._check(signature)
        given = [(part["partNumber"], part["etag"].strip('"')) for part in call.json()["parts"]]
        contents = [self.parts.get((sha256, number), b"") for number, _ in given]
        if [etag for _, etag in given] != [hashlib.md5(content).hexdigest() for content in contents]:
            raise RefusalError(400, "A part is missing or has another ETag")
        return self._keep(sha256, b"".join(contents))

    def download(self, call, signature: str, sha256: str) -> Reply:
        self._check(signature)
        if sha256 not in self.objects:
            raise RefusalError(404, "No such object")
        return Reply(200, self.objects.read(sha256), {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes"})

    def _check(self, signature: str) -> None:
        if signature != self.signature:
            raise RefusalError(403, "Wrong signature")


ROUTES = [
    ("PUT", r"/storage/(\w+)/(\w+)", Transfers.upload),
    ("PUT", r"/storage/(\w+)/(\w+)/(\d+)", Transfers.upload_part),
    ("POST", r"/storage/(\w+)/(\w+)", Transfers.complete),
    ("GET|HEAD", r"/storage/(\w+)/(\w+)", Transfers.download),
]
