"""The repository and the revision of a push, and the checks of the access token and of the permissions before
a push.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from huggingface_hub import HfApi, ModelInfo, SpaceInfo, get_token
from huggingface_hub.errors import RepositoryNotFoundError

from ..checkpoint.hub import HubError, InvalidHubValueError, explained, with_retries

# Matches a text that git does not accept as the name of a branch or tag: see `git help check-ref-format`.
_INVALID_REF = re.compile(r"^$|[\s\x00-\x1f\x7f~^:?*\[\\]|\.\.|@\{|//|(^|/)\.|^/|[/.]$|\.lock(/|$)")


@dataclass(frozen=True)
class Destination:
    """The repository and the revision of a push. The docstring of `push` explains the fields, except
    `repo_type` and `space_sdk`, which are arguments of `HfApi.create_repo`.
    """

    repo_id: str
    private: bool = False
    revision: str | None = None
    create_pr: bool = False
    tag: str | None = None
    token: str | bool | None = field(default=None, repr=False)
    repo_type: Literal["model", "space"] = "model"
    space_sdk: Literal["gradio", "static"] | None = None

    def __post_init__(self) -> None:
        for name in ("revision", "tag"):
            value = getattr(self, name)
            if value is not None and _INVALID_REF.search(value):
                raise InvalidHubValueError(
                    f"`{name}` must be a name that git accepts, such as v1.0, but is {value!r}; give another name."
                )

    @property
    def is_pull_request(self) -> bool:
        """True if the push goes to a pull request, which needs no write permission for the repository."""
        return self.create_pr or (self.revision or "").startswith("refs/pr/")


def check_token(destination: Destination) -> None:
    """Raise a `HubError` if there is no access token, before the first request to the Hub."""
    if not isinstance(destination.token, str) and (destination.token is False or get_token() is None):
        raise HubError(
            "A push needs an access token with write permission, but there is no token; log in with `hf "
            "auth login` or set HF_TOKEN."
        )


def check_destination(destination: Destination) -> Destination:
    """Add the name of the user to a `repo_id` without an owner. If the repository exists, set `private` to
    the visibility of the repository. Raise a `HubError` if a push is not possible.

    The check creates no repository and no branch. Therefore a run can check the destination before the
    training.
    """
    check_token(destination)
    with explained():
        api = HfApi(token=destination.token)
        user = with_retries(api.whoami)
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise HubError(
                f"The token of {user['name']} may read but not write; make a token with write permission at "
                f"{api.endpoint}/settings/tokens, and log in with `hf auth login` or set HF_TOKEN."
            )
        namespace, _, name = destination.repo_id.rpartition("/")
        destination = replace(destination, repo_id=f"{namespace or user['name']}/{name}")
        try:
            info: Any = with_retries(api.repo_info, destination.repo_id, repo_type=destination.repo_type)
        except RepositoryNotFoundError:
            namespaces = [user["name"], *(group["name"] for group in user.get("orgs") or [])]
            if namespace and namespace not in namespaces:
                raise HubError(
                    f"There is no repository '{namespace}/{name}', and the token of {user['name']} cannot "
                    f"make a repository for '{namespace}'; push to '{user['name']}/{name}', or use a token "
                    f"of '{namespace}'."
                ) from None
            if destination.is_pull_request:
                raise
        else:
            _check_repository(api, destination, info)
            destination = replace(destination, private=info.private)
    return destination


def _check_repository(api: HfApi, destination: Destination, info: ModelInfo | SpaceInfo) -> None:
    repo_id = destination.repo_id
    revision = destination.revision
    if destination.private and not info.private:
        if destination.repo_type == "space":
            raise InvalidHubValueError(
                f"The Space of a private model must be private, but '{repo_id}' is public; make the Space private at "
                f"{api.endpoint}/spaces/{repo_id}/settings, or give the name of a new Space."
            )
        raise InvalidHubValueError(
            f"`private` is for a new repository, but '{repo_id}' exists and is public; leave `private` out, "
            f"or make the repository private at {api.endpoint}/{repo_id}/settings."
        )
    if not destination.is_pull_request:
        with_retries(api.auth_check, repo_id, repo_type=destination.repo_type, write=True)
    refs = with_retries(
        api.list_repo_refs, repo_id, repo_type=destination.repo_type, include_pull_requests=True
    )
    tags = {ref.name for ref in refs.tags}
    branches = {ref.name for ref in refs.branches}
    pull_requests = {ref.ref for ref in refs.pull_requests or []}
    if destination.tag in tags | branches:
        raise InvalidHubValueError(
            f"`tag` must be new, but '{repo_id}' has a tag or branch '{destination.tag}'; take another name."
        )
    is_missing = (revision or "").startswith("refs/pr/") and revision not in pull_requests
    if revision in tags or is_missing:
        raise InvalidHubValueError(
            f"`revision` must be a branch or a pull request that '{repo_id}' has, but is '{revision}'."
        )
