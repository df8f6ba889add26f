"""Pushing a finished checkpoint to the Hub."""

from pathlib import Path

from huggingface_hub import HfApi

# What a checkpoint is: no numbered checkpoints, no optimizer state, no logs.
CHECKPOINT_FILES = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "target_tokenizer/*.json",
]


def push_checkpoint(folder: str | Path, repo_id: str, *, private: bool = False) -> str:
    """Push the model and its tokenizers to a repository, which is made if there is none.

    Args:
        folder (str or Path): A checkpoint as `vaswani train` leaves it.
        repo_id (str): user/name.
        private (bool): Whether a new repository is private.

    Returns:
        str: The address of the commit.

    Raises:
        ValueError: If the folder holds no checkpoint.
    """
    if not (Path(folder) / "config.json").exists():
        raise ValueError(f"'{folder}' holds no checkpoint to push; it has no config.json.")
    api = HfApi()
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    commit = api.upload_folder(
        repo_id=repo_id,
        folder_path=folder,
        allow_patterns=CHECKPOINT_FILES,
        # Folders of numbered checkpoints hold files of the same names.
        ignore_patterns=["checkpoint-*", ".*"],
        commit_message="Push a checkpoint of vaswani_hf",
    )
    return commit.commit_url
