"""Users, their organisations and tokens, and who may do what with a repository."""

import secrets
from dataclasses import dataclass, field

from local_hub.replies import RefusalError


@dataclass
class Visitor:
    """The sender of a request: a user with a token that reads or writes, or nobody."""

    name: str | None = None
    role: str = "read"
    namespaces: set[str] = field(default_factory=set)

    def owns(self, repository) -> bool:
        return repository.namespace in self.namespaces

    def sees(self, repository) -> bool:
        return not repository.private or self.owns(repository)

    def writes(self, repository) -> bool:
        return self.role == "write" and self.owns(repository)


class Accounts:
    def __init__(self):
        self.organisations = {}
        self.tokens = {}

    def add_user(self, name: str, orgs=()) -> str:
        self.organisations[name] = list(orgs)
        return self.add_token(name, role="write")

    def add_token(self, name: str, role: str = "read") -> str:
        if name not in self.organisations:
            raise KeyError(name)
        token = "hf_" + secrets.token_hex(17)
        self.tokens[token] = (name, role)
        return token

    def visitor(self, call) -> Visitor:
        """The sender of a request, by its token."""
        authorization = call.headers["Authorization"]
        if not authorization:
            return Visitor()
        name, role = self.tokens.get(authorization.removeprefix("Bearer "), (None, None))
        if name is None:
            is_whoami = call.path == "/api/whoami-v2"
            raise RefusalError(
                401, "Invalid user token." if is_whoami else "Invalid credentials in Authorization header"
            )
        return Visitor(name, role, {name, *self.organisations[name]})

    def whoami(self, visitor: Visitor) -> dict:
        orgs = [
            {"type": "org", "id": org, "name": org, "fullname": org, "roleInOrg": "write"}
            for org in self.organisations[visitor.name]
        ]
        token = {"type": "access_token", "accessToken": {"displayName": "tests", "role": visitor.role}}
        person = {"type": "user", "id": visitor.name, "name": visitor.name, "fullname": visitor.name}
        return person | {"isPro": False, "canPay": False, "orgs": orgs, "auth": token}


def need_sight(visitor: Visitor, repository) -> None:
    """Refuse whoever may not even know that the repository exists."""
    if repository is not None and visitor.sees(repository):
        return
    if visitor.name is None:
        # The Hub gives no code here; its client reads the 401 of an https address as a missing repository, and only there.
        raise RefusalError(401, "Invalid username or password.", "RepoNotFound")
    raise RefusalError(404, "Repository not found", "RepoNotFound")


def need_files(visitor: Visitor, repository) -> None:
    """Refuse whoever may not read the files of a gated repository."""
    if not repository.gated or visitor.owns(repository) or visitor.name in repository.granted:
        return
    if visitor.name is None:
        message = f"Access to model {repository.id} is restricted. You must have access to it and be authenticated to access it. Please log in."
        raise RefusalError(401, message, "GatedRepo")
    message = f"Access to model {repository.id} is restricted and you are not in the authorized list. Visit the repository's page to ask for access."
    raise RefusalError(403, message, "GatedRepo")


def need_login(visitor: Visitor) -> None:
    if visitor.name is None:
        raise RefusalError(401, "Invalid username or password.")


def need_write(visitor: Visitor, repository) -> None:
    """Refuse whoever may not change the repository."""
    need_write_token(visitor)
    if not visitor.owns(repository):
        raise RefusalError(403, "You don't have the required permissions to perform this action")


def need_commit(visitor: Visitor, repository, revision: str, create_pr: bool) -> None:
    """Refuse whoever may not commit there: members anywhere, others to pull requests of theirs."""
    need_login(visitor)
    if visitor.writes(repository):
        return
    if not create_pr and not repository.is_author(visitor.name, revision):
        raise RefusalError(403, "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")
    need_write_token(visitor)


def need_write_token(visitor: Visitor) -> None:
    need_login(visitor)
    if visitor.role != "write":
        raise RefusalError(403, "You don't have the required permissions to perform this action")
