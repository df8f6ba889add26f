"""Defines `Translator`: `BaseTranslator` with loading by name, the dtype "auto" and int8 weights."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Self

import torch

from ..checkpoint.loading import check_config, checkpoint_folder, load_model
from ..checkpoint.tokenizers import is_tree_tokenizer, load_tokenizers
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import TranslationOptions
from ..model.requests_vaswani import InvalidInput, Request
from ..model.tokenizing_vaswani import check_tokenizers
from ..model.translator_vaswani import BaseTranslator
from ..processor import has_bfloat16
from .calibration import load_calibration
from .precision import checked_dtype, choose_dtype
from .quantization import check_quantization, quantize


class Translator(BaseTranslator):
    """Translates texts with one model, or with several models whose probabilities are averaged.

    `Translator.from_pretrained` loads a checkpoint. The constructor has the same arguments as
    `BaseTranslator`.

    Example:
        >>> from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
        >>> from vaswani_hf.data.tokenizer_training import train_tokenizer
        >>> tokenizer = train_tokenizer(["A dog sleeps.", "Ein Hund schläft."], 280)
        >>> config = VaswaniConfig(vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1)
        >>> translator = Translator(VaswaniForSeq2SeqLM(config).eval(), tokenizer, tokenizer)
        >>> len(list(translator.translate(["A dog sleeps.", "A dog."], num_beams=2, max_new_tokens=5)))
        2
    """

    # True for a class that loads only parsing models, such as `Parser`.
    makes_trees = False
    # True if the dtype is "auto", and the translator has not yet chosen between float32 and bfloat16.
    is_undecided = False

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        device: str | None = None,
        *,
        ensemble: Sequence[str] = (),
        dtype: str | torch.dtype | None = None,
        quantization: str | None = None,
        with_calibration: bool = True,
        **hub_kwargs: Any,
    ) -> Self:
        """Load a checkpoint.

        Args:
            name_or_path (str): The checkpoint: a local folder, or a repository on the Hub as user/name or
                user/name@revision.
            device (str, optional): The device, such as "cpu" or "cuda:1". By default, the device is the GPU
                if the machine has a GPU and `quantization` is None, else the CPU.
            ensemble (sequence): The names of more checkpoints with the same vocabulary. The translator
                averages the probabilities of all models.
            dtype (str or torch.dtype, optional): "float32", "bfloat16", "float16" or "auto". "auto" chooses
                bfloat16 if the device multiplies bfloat16 in hardware, and if the first texts have the same
                translations as in float32; otherwise, "auto" chooses float32. The default is the dtype of the
                checkpoint.
            quantization (str, optional): "int8" loads int8 weights for the CPU. int8 weights need the library
                torchao.
            with_calibration (bool): If True, load the calibration.json of the checkpoint. An ensemble never
                has a calibration.
            **hub_kwargs: `revision`, `token`, `cache_dir`, `local_files_only` and `force_download`, as in
                `snapshot_download`. `revision` applies to names without @revision.

        Returns:
            Translator: A translator whose models are in eval mode.

        Raises:
            ValueError: If the checkpoint, device, dtype or quantization does not exist. A ValueError is also
                raised if the vocabularies of an ensemble differ, or if a checkpoint is damaged or is not a
                translation model.
            HubError: If a repository cannot be downloaded, or if a downloaded file differs from the file on
                the Hub.
        """
        if isinstance(ensemble, str):
            raise InvalidValueError(f"`ensemble` must be a list of checkpoints, but is the str {ensemble!r}.")
        dtype = checked_dtype(dtype)
        is_on_gpu = torch.cuda.is_available() and quantization is None
        place = checked_device(device or ("cuda" if is_on_gpu else "cpu"))
        check_quantization(quantization, dtype, device)
        names = [name_or_path, *ensemble]
        folders = []
        for number, name in enumerate(names):
            folder = checkpoint_folder(name, option="ensemble" if number else "model", **hub_kwargs)
            check_config(folder, name, needed="a parser" if cls.makes_trees else "")
            folders.append(folder)
        tokenizers = [load_tokenizers(folder, name) for folder, name in zip(folders, names, strict=True)]
        _check_trees(name_or_path, is_tree_tokenizer(tokenizers[0][1]), cls.makes_trees)
        for name, others in zip(ensemble, tokenizers[1:], strict=True):
            _check_vocabularies(name_or_path, tokenizers[0], name, others)
        if dtype == "auto" or quantization is not None:
            of_weights: dict[str, Any] = {"dtype": torch.float32}
        else:
            of_weights = {} if dtype is None else {"dtype": dtype}
        models = []
        for folder, name, of_model in zip(folders, names, tokenizers, strict=True):
            model = load_model(folder, name, **of_weights).to(place)
            check_tokenizers(model, *of_model, str(name))
            models.append(model if quantization is None else quantize(model))
        translator = cls(models[0], *tokenizers[0], ensemble=models[1:])
        if with_calibration and not ensemble:
            translator.calibration = load_calibration(folders[0])
        translator.is_undecided = dtype == "auto" and has_bfloat16(place)
        return translator

    def prepare(self, requests: Sequence[Request | InvalidInput], options: TranslationOptions) -> None:
        """If the dtype is "auto", translate the first non-blank requests in float32 and again in bfloat16.
        Choose bfloat16 if the bfloat16 translations equal the float32 translations, otherwise float32.
        """
        if self.is_undecided:
            choose_dtype(self, requests, options)

    def after_choosing_dtype(self, requests: Iterable[Any], options: TranslationOptions) -> Iterator[Any]:
        """If the dtype is "auto", translate the first requests to choose float32 or bfloat16. Return an
        iterator over all requests, including the requests that were read to choose the dtype.
        """
        requests = iter(requests)
        first: list[Any] = []
        # If all texts so far are blank, read more requests, because `choose_dtype` compares the translations
        # of texts that are not blank.
        while self.is_undecided and (window := list(islice(requests, options.window))):
            first += window
            self.prepare(window, options)
        return chain(first, requests)


def checked_device(name: str) -> torch.device:
    """Convert a name such as "cuda:1" to a device. Raise an error if this machine does not have the
    device.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        devices = ["cpu"]
        if torch.accelerator.is_available():
            kind = torch.accelerator.current_accelerator()
            devices += [f"{kind}:{number}" for number in range(torch.accelerator.device_count())]
        raise InvalidValueError(
            f"`device` is {name!r}, but PyTorch finds no such device on this machine; give "
            f"{' or '.join(devices)}."
        ) from None
    return device


def _check_trees(name: str, makes_trees: bool, is_asked_for_trees: bool) -> None:
    if makes_trees and not is_asked_for_trees:
        raise InvalidValueError(
            f"`model` must be a translation model, but '{name}' is a parser; it is used by `vaswani parse`, "
            "and by `Parser` of vaswani_hf.parsing."
        )
    if is_asked_for_trees and not makes_trees:
        raise InvalidValueError(
            f"`model` must be a parser, but '{name}' is a translation model; it is used by `vaswani "
            "translate`, and by `Translator` of vaswani_hf.translation."
        )


def _check_vocabularies(name: str, tokenizers: tuple, other_name: str, others: tuple) -> None:
    for tokenizer, other in zip(tokenizers, others, strict=True):
        if tokenizer.get_vocab() != other.get_vocab():
            raise InvalidValueError(
                f"`ensemble` must hold checkpoints with the vocabulary of '{name}', but '{other_name}' has "
                f"another vocabulary ({len(tokenizer):,} and {len(other):,} entries)."
            )
