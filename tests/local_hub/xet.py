"""The content-addressed store that the xet client uploads chunks to, and builds files from.

A xorb is a block of compressed chunks. A shard says of which chunks of which xorbs a file consists. All numbers are
little-endian, and a hash is written as four numbers of 64 bits.
"""

import hashlib
import re
import secrets
import struct
import threading
import time
from dataclasses import dataclass

from local_hub.routes import RefusalError, Reply, json_reply

# Sections of a shard end with an entry of this hash; every entry has 48 bytes.
END = b"\xff" * 32
ENTRY = 48
HAS_VERIFICATION, HAS_SHA256 = 1 << 31, 1 << 30
TOKEN_SECONDS = 3600
# The server reads its own store under this path; these requests are not logged and have no faults.
OWN_PATH = "/own-xet"


@dataclass(frozen=True)
class Term:
    """The chunks `start` to `end` of a xorb, with their number of bytes in a file."""

    xorb: str
    size: int
    start: int
    end: int


def hash_text(raw: bytes) -> str:
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", raw))


def files_of_shard(shard: bytes) -> list[tuple[str, str, list[Term]]]:
    """The xet hash, the sha256 and the terms of each file of a shard."""
    found = []
    position = ENTRY
    while shard[position : position + 32] != END:
        file_hash, flags, count = struct.unpack_from("<32sII", shard, position)
        position += ENTRY
        terms = []
        for _ in range(count):
            xorb, _, size, start, end = struct.unpack_from("<32sIIII", shard, position)
            terms.append(Term(hash_text(xorb), size, start, end))
            position += ENTRY
        if flags & HAS_VERIFICATION:
            position += count * ENTRY
        sha256 = ""
        if flags & HAS_SHA256:
            sha256 = hash_text(shard[position : position + 32])
            position += ENTRY
        found.append((hash_text(file_hash), sha256, terms))
    return found


def chunk_offsets(xorb: bytes) -> list[int]:
    """The places where the chunks of a xorb begin, and where the last one ends."""
    offsets = [0]
    # A header: version 0, compressed length of 3 bytes, scheme, length of 3 bytes. A footer follows the last
    # chunk.
    while offsets[-1] < len(xorb) and xorb[offsets[-1]] == 0:
        begin = offsets[-1]
        offsets.append(begin + 8 + int.from_bytes(xorb[begin + 1 : begin + 4], "little"))
    return offsets


class Store:
    def __init__(self):
        self.xorbs: dict[str, bytes] = {}
        self.terms: dict[str, list[Term]] = {}
        # Hashes of xet by sha256.
        self.hashes: dict[str, str] = {}
        self.own_token = "xet_" + secrets.token_hex(8)
        self.tokens = {self.own_token: "write"}
        self.origin = ""
        self._lock = threading.Lock()
        self._session = None

    def token(self, role: str) -> Reply:
        """The reply to a client that asks how to reach the store."""
        token = "xet_" + secrets.token_hex(8)
        self.tokens[token] = role
        expiry = int(time.time()) + TOKEN_SECONDS
        url = f"{self.origin}/xet"
        headers = {"X-Xet-Cas-Url": url, "X-Xet-Access-Token": token, "X-Xet-Token-Expiration": str(expiry)}
        return json_reply({"accessToken": token, "exp": expiry, "casUrl": url}, **headers)

    def need(self, call, role: str) -> None:
        given = self.tokens.get((call.headers["Authorization"] or "").removeprefix("Bearer "))
        if given is None or role == "write" != given:
            raise RefusalError(401, "Invalid xet token")

    def add_xorb(self, call, name: str) -> Reply:
        self.need(call, "write")
        is_new = name not in self.xorbs
        self.xorbs[name] = call.body
        return json_reply({"was_inserted": is_new})

    def add_shard(self, call) -> Reply:
        self.need(call, "write")
        for file_hash, sha256, terms in files_of_shard(call.body):
            if not all(term.xorb in self.xorbs for term in terms):
                raise RefusalError(400, "The shard names a xorb that is not here")
            self.terms[file_hash] = terms
            self.hashes[sha256] = file_hash
        return json_reply({"result": 1})

    def reconstruction(self, call, file_hash: str) -> Reply:
        """The chunks that make up the requested bytes."""
        self.need(call, "read")
        terms = self.terms[file_hash]
        size = sum(term.size for term in terms)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", call.headers["Range"] or f"bytes=0-{size - 1}")
        first, last = int(asked[1]), int(asked[2])
        if first >= size:
            raise RefusalError(416, "Range Not Satisfiable")
        content = {"offset_into_first_range": 0, "terms": [], "fetch_info": {}}
        position = 0
        for term in terms:
            if position <= last and position + term.size > first:
                if not content["terms"]:
                    content["offset_into_first_range"] = first - position
                chunks = {"start": term.start, "end": term.end}
                content["terms"].append({"hash": term.xorb, "unpacked_length": term.size, "range": chunks})
                sources = content["fetch_info"].setdefault(term.xorb, [])
                if chunks not in [source["range"] for source in sources]:
                    sources.append(self._source(call, term))
            position += term.size
        return json_reply(content)

    def _source(self, call, term: Term) -> dict:
        offsets = chunk_offsets(self.xorbs[term.xorb])
        base = call.path.split("/v1/")[0]
        return {
            "range": {"start": term.start, "end": term.end},
            "url": f"{self.origin}{base}/blocks/{term.xorb}",
            "url_range": {"start": offsets[term.start], "end": offsets[term.end] - 1},
        }

    def block(self, call, name: str) -> Reply:
        return Reply(200, self.xorbs[name], {"Accept-Ranges": "bytes"})

    def content(self, sha256: str) -> bytes | None:
        """The bytes of an uploaded file, built by the stock client and checked; None if it was never uploaded."""
        if sha256 not in self.hashes:
            return None
        # The library reads its environment when it is imported.
        import hf_xet

        with self._lock:
            self._session = self._session or hf_xet.XetSession()
            group = self._session.new_download_stream_group(
                endpoint=self.origin + OWN_PATH,
                token=self.own_token,
                token_expiry_unix_secs=int(time.time()) + TOKEN_SECONDS,
            )
            file_hash = self.hashes[sha256]
            size = sum(term.size for term in self.terms[file_hash])
            content = b"".join(group.download_stream(hf_xet.XetFileInfo(file_hash, size)))
        if hashlib.sha256(content).hexdigest() != sha256:
            raise RefusalError(400, f"The uploaded content is not that of sha256 {sha256}")
        return content


PREFIX = rf"(?:/xet|{OWN_PATH})"
ROUTES = [
    ("POST", rf"{PREFIX}/v1/xorbs/default/(\w+)", Store.add_xorb),
    ("POST", rf"{PREFIX}/v1/shards", Store.add_shard),
    ("GET", rf"{PREFIX}/v1/reconstructions/(\w+)", Store.reconstruction),
    ("GET", rf"{PREFIX}/blocks/(\w+)", Store.block),
]
