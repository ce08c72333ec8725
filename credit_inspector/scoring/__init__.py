"""The engine that runs models: rollouts → tensors → forward passes and gradients → plain NumPy.

====================  ==================================================================================================
``device``            where models run and in which precision
``head``              hidden states → log-prob, entropy, Σp² and exact KL, in row chunks under a memory budget
``fused``               the log-prob kernel of TRL on CUDA, after a parity check
``shared``            lines in one row: no padding, common beginnings computed once, attention to match
``batches``           lines of tokens → packed or right-padded batches
``models``            ``Models``: the checkpoints of a run by role, opened when first used
``answers``           which span is a response's answer
``alignment``         ⟨∇ log π(token), ∇ log p(answer)⟩ for all tokens of a response by one forward-mode pass
``saliency``          gradient × input of the answer's log-prob
``occlusion``         the answer and all later spans without a span; the answer right after every prefix
====================  ==================================================================================================

Letters in shapes: ``B`` lines of a batch, ``W`` its width, ``M`` scored tokens, ``H`` hidden size, ``V`` vocabulary;
``N`` rollouts, ``T`` response tokens and ``S`` spans of a step, ``L`` tokens of one response.
"""

from credit_inspector.errors import MissingExtra

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise MissingExtra(error.name or "torch", "compute") from error

from credit_inspector.scoring.models import Models

__all__ = ["Models"]
