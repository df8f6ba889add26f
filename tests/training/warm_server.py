"""Loads and prepares the parts of a run once, in the server that forks the runs of the tests."""

import gc
import io

import mortal_runs  # noqa: F401
import torch._dynamo  # noqa: F401
import torch.nn.parallel  # noqa: F401
from transformers import conversion_mapping

import vaswani_hf.translation.translator  # noqa: F401
from vaswani_hf.evaluation.bleu import score_translations
from vaswani_hf.training.run_results import plot_training_curve

# The server must not start threads, so compute nothing with torch.
plot_training_curve([{"step": step, "loss": 1.0, "eval_loss": 1.0} for step in (1, 2)], io.BytesIO())
score_translations(["a"], ["a"])
conversion_mapping.get_checkpoint_conversion_mapping("vaswani")
# Garbage collection in a forked process would copy the memory of the imported modules.
gc.collect()
gc.freeze()
