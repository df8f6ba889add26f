"""Uploads and downloads of large files at the other origin, by addresses that authorise themselves."""

import hashlib
import secrets

from local_hub.replies import RefusalError, Reply, json_reply
from local_hub.repositories import Objects


class Transfers:
    def __init__(self, objects: Objects):
        self.objects = objects
        self.origin = ""
        self.signature = secrets.token_hex(8)
        self.expected = {}

    def url(self, sha256: str) -> str:
        return f"{self.origin}/storage/{self.signature}/{sha256}"

    def action(self, sha256: str, size: int) -> dict:
        """The address to upload an object to, in one part."""
        self.expected[sha256] = size
        return {"href": self.url(sha256)}

    def upload(self, call, signature: str, sha256: str) -> Reply:
        self._check(signature)
        content = call.body
        if len(content) != self.expected.get(sha256) or hashlib.sha256(content).hexdigest() != sha256:
            raise RefusalError(400, "The content does not have the sha256 and the size that were announced")
        self.objects.add(content)
        return json_reply({})

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
    ("GET|HEAD", r"/storage/(\w+)/(\w+)", Transfers.download),
]
