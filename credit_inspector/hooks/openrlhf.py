"""OpenRLHF from the inside: the experiences of each optimizer step, written as a record.

OpenRLHF leaves nothing by response on disk. Its driver holds everything for a moment: ``make_experience_batch`` of
``RemoteExperienceMaker`` returns a list of ``Experience``, on the CPU, with advantages, before they go to the actors (read in
OpenRLHF 0.11.2). OpenRLHF has no callbacks, and its trainer is a Ray actor, into which a patch from outside does not reach. The
recording is therefore a line in ``train_step`` of ``openrlhf/trainer/ppo_trainer.py``, below the call that makes them::

    experiences = self.experience_maker.make_experience_batch(rollout_samples)

    from credit_inspector.hooks.openrlhf import record_experiences
    group = self.args.rollout.n_samples_per_prompt
    record_experiences("/runs/record", global_step + 1, experiences, self.tokenizer, samples_per_prompt=group)

How a tensor lies: ``sequences`` is ``[B, T]``, prompt and response joined, padded on the right. Everything by token is
``[B, T − 1]``: place t is of token t + 1, as a log-probability stands where its logits do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credit_inspector.errors import UsageError
from credit_inspector.rollout import Rollout, Step
from credit_inspector.trainers._joined import split
from credit_inspector.trainers._rollouts import by_prompt, named
from credit_inspector.trainers.record import write_header, write_step

log = logging.getLogger("credit_inspector")

_COLUMNS = {
    "logprob/old": "action_log_probs",
    "logprob/ref": "base_action_log_probs",
    "logprob/rollout": "rollout_log_probs",
    "value/old": "values",
    "advantage": "advantages",
}
"""Our names → an ``Experience``'s fields. All are 0 outside ``action_mask``, which is fill."""
_NOTES = (
    "logprob/old is the actor's before the update, at the sampling temperature; logprob/rollout is vLLM's",
    "the reference's log-probs are there where the KL term is in the loss (algo.kl.use_loss)",
    "reward is after length penalties and before the KL term; advantages are those that the loss gets",
    "which weights sampled a response is not in an Experience",
)


def record_experiences(
    folder: str | Path,
    step: int,
    experiences: Sequence[Any],
    tokenizer: Any = None,
    *,
    samples_per_prompt: int | None = None,
) -> Path | None:
    """Write one optimizer step of OpenRLHF into a record; a step written before is replaced.

    Args:
        folder: the record, made if it is not there.
        step: the optimizer step that trains on them, from 1.
        experiences: what ``make_experience_batch`` returned.
        tokenizer: decodes ids to text and is saved with the record; without one the record has ids and the prompt's text.
        samples_per_prompt: ``rollout.n_samples_per_prompt``, by which OpenRLHF itself cuts the batch into groups; without it
            groups are equal prompts.

    Returns:
        The step's file; ``None`` when it could not be written, which is one warning and never an end of the training.
    """
    folder = Path(folder)
    try:
        if not (folder / "record.json").is_file():
            _begin(folder, tokenizer)
        rollouts = rollouts_of(experiences, tokenizer, samples_per_prompt=samples_per_prompt, batch=f"{step}-")
        return write_step(folder, Step(step, rollouts))
    except Exception as error:  # whatever it is, the training goes on
        log.warning("credit_inspector: step %d is not recorded: %r", step, error)
        return None


def rollouts_of(
    experiences: Iterable[Any], tokenizer: Any = None, *, samples_per_prompt: int | None = None, batch: str = ""
) -> tuple[Rollout, ...]:
    """The responses of some experiences, in the order in which they were sampled; ``batch`` begins the names of groups.

    Raises:
        UsageError: tensors that do not belong together, or not OpenRLHF's.
    """
    found = [one for experience in experiences for one in _batch(experience, tokenizer)]
    if all(place is not None for place, _ in found):
        found.sort(key=lambda pair: pair[0] or 0)
    numbered = [place if place is not None else at for at, (place, _) in enumerate(found)]
    rollouts = [replace(one, sample_id=str(at)) for at, (_, one) in zip(numbered, found, strict=True)]
    if samples_per_prompt:
        groups = [f"{batch}{at // samples_per_prompt}" for at in numbered]
        pairs = zip(rollouts, groups, strict=True)
        rollouts = [replace(one, group_id=group, group_source="contiguous") for one, group in pairs]
    return by_prompt(named(rollouts))


def _begin(folder: Path, tokenizer: Any) -> None:
    if tokenizer is not None:
        tokenizer.save_pretrained(folder / "tokenizer")
    write_header(folder, trainer=_trainer(), tokenizer=None if tokenizer is None else "tokenizer", notes=_NOTES)


def _trainer() -> str:
    try:
        return f"openrlhf {version('openrlhf')}"
    except PackageNotFoundError:
        return "openrlhf"


# ── one experience ──────────────────────────────────────────────────────────────────────────────────────────────────


def _batch(experience: Any, tokenizer: Any) -> Iterator[tuple[int | None, Rollout]]:
    """Each response with its place in the whole batch (``index``), where that is known."""
    sequences, attention, actions = (_array(experience, name) for name in ("sequences", "attention_mask", "action_mask"))
    if sequences is None or attention is None or actions is None:
        raise UsageError("an experience without sequences, attention_mask and action_mask", wanted="OpenRLHF's Experience")
    size, length = sequences.shape
    columns = {ours: _array(experience, theirs) for ours, theirs in _COLUMNS.items()}
    for name, values in (("action_mask", actions), *columns.items()):
        if values is not None and values.shape != (size, length - 1):
            found = f"{name} of shape {values.shape} beside sequences {sequences.shape}"
            raise UsageError(found, wanted=f"({size}, {length - 1}), place t for token t + 1 (OpenRLHF 0.11)")
    index = list(getattr(experience, "index", None) or [])
    for row in range(size):
        laid = {name: _of_token(values[row]) for name, values in columns.items() if values is not None}
        end = _end(attention[row])
        trained = np.concatenate([[False], actions[row] > 0])
        parts, _ = split(sequences[row], trained, laid, end=end, trained_only=tuple(laid))
        yield (int(index[row]) if len(index) == size else None), _rollout(experience, row, parts, tokenizer)


def _array(experience: Any, name: str) -> NDArray[Any] | None:
    tensor = getattr(experience, name, None)
    if tensor is None:
        return None
    values: NDArray[Any] = tensor.detach().cpu().float().numpy() if tensor.is_floating_point() else tensor.cpu().numpy()
    return values


def _of_token(values: NDArray[Any]) -> NDArray[np.float32]:
    """``[T − 1]`` → ``[T]``: what stands at t is of token t + 1, and the first token has nothing."""
    return np.concatenate([[np.nan], values]).astype(np.float32)


def _end(attention: NDArray[Any]) -> int:
    """How long a sequence is without its padding.

    Raises:
        UsageError: padding on the left.
    """
    places = np.flatnonzero(attention)
    if len(places) and places[0] != 0:
        raise UsageError("a sequence padded on the left", wanted="padding on the right, as OpenRLHF 0.11 has it")
    return int(places[-1]) + 1 if len(places) else 0


def _rollout(experience: Any, row: int, values: dict[str, Any], tokenizer: Any) -> Rollout:
    prompts = getattr(experience, "prompts", None) or []
    prompt = str(prompts[row]) if row < len(prompts) else None
    response = None
    if tokenizer is not None:
        prompt, response = (
            tokenizer.decode(values[name].tolist(), skip_special_tokens=False) for name in ("prompt_ids", "response_ids")
        )
    truncated = _scalar(getattr(experience, "truncated", None), row)
    return Rollout(
        sample_id=str(row),
        prompt=prompt,
        response=response,
        prompt_ids=values["prompt_ids"],
        response_ids=values["response_ids"],
        loss_mask=values["loss_mask"],
        columns={name: values[name] for name in _COLUMNS if name in values},
        reward=_scalar(getattr(experience, "rewards", None), row),
        truncated=None if truncated is None else bool(truncated),
        extra=_extra(experience, row),
    )


def _extra(experience: Any, row: int) -> dict[str, Any]:
    """The label, the score, and what was logged of the response."""
    labels = getattr(experience, "labels", None) or []
    found: dict[str, Any] = {"label": labels[row]} if row < len(labels) else {}
    logged = {"score": getattr(experience, "scores", None), **(getattr(experience, "info", None) or {})}
    numbers = {name: _scalar(value, row) for name, value in logged.items() if name != "reward"}
    return found | {name: value for name, value in numbers.items() if value is not None}


def _scalar(values: Any, row: int) -> float | None:
    """One response's number of a ``[B]`` tensor or list; ``None`` where there is none."""
    if values is None or not hasattr(values, "__len__") or row >= len(values):
        return None
    value = values[row]
    number = float(value) if not hasattr(value, "numel") or value.numel() == 1 else None
    return number if number is not None and np.isfinite(number) else None
