"""The message and the exit code of a command that ends with an error."""

import errno

import pytest
from huggingface_hub.errors import HFValidationError

from vaswani_hf.checkpoint.hub import HubError, InvalidHubValueError
from vaswani_hf.cli.output import OutputError
from vaswani_hf.cli.report import report
from vaswani_hf.convert.export_formats import NotExpressibleError
from vaswani_hf.data.lines import MissingFileError
from vaswani_hf.model.errors_vaswani import InvalidValueError
from vaswani_hf.model.phrases_vaswani import PhraseError
from vaswani_hf.training.ablation import FailedRunsError
from vaswani_hf.training.run import InterruptedRunError

# Each row has an error, its message on stderr, and the exit code of the command.
EXIT_CODES = [
    (InvalidValueError("`--x` must be 1."), "`--x` must be 1.", 2),
    (MissingFileError("`--x` must be an existing file."), "`--x` must be an existing file.", 2),
    (InvalidHubValueError("`tag` must be new."), "`tag` must be new.", 2),
    (HFValidationError("Cannot have -- in repo_id."), "Cannot have -- in repo_id.", 2),
    (NotExpressibleError("`d_k` is 3."), "`d_k` is 3.", 2),
    (PhraseError(0, [[1]], "x"), "`must_contain` has [1] for sentence 0 of the batch, but x.", 2),
    (ValueError("Line 3 of file must be text."), "Line 3 of file must be text.", 1),
    (ValueError("`x` of another library"), "`x` of another library", 1),
    (HubError("The transfer failed."), "The transfer failed.", 1),
    (OutputError("`--output` cannot be written."), "`--output` cannot be written.", 1),
    (OSError(errno.EACCES, "Denied", "f"), "'f' cannot be read or written (Denied).", 1),
    # A copy without space names the new file, and not its source.
    (OSError(errno.ENOSPC, "Full", "from.py", None, "to.py"), "'to.py' cannot be read or written (Full).", 1),
    (RuntimeError("`x` of another library"), "RuntimeError: `x` of another library", 1),
    (FailedRunsError("1 of 2 trainings failed."), "1 of 2 trainings failed.", 1),
    (InterruptedRunError("The run was interrupted."), "The run was interrupted.", 130),
]


@pytest.mark.parametrize(("error", "message", "code"), EXIT_CODES)
def test_the_class_of_an_error_decides_the_exit_code(capsys, error, message, code):
    assert report(error, is_output_lost=False) == code
    assert capsys.readouterr().err == f"vaswani: {message}\n"
