"""TRL from the inside: record a ``GRPOTrainer`` while it trains.

TRL leaves only text and one advantage a response on disk, and its callbacks see neither the trainer nor the batch. ``attach``
therefore replaces three bound methods of the one trainer instance by wrappers that call the original first and then look:

=================================  =====================================================================================
``_generate_and_score_completions``  the responses with their rewards; a row number is added to the batch, since TRL
                                   shuffles and splits it before the loss
``_calculate_rewards``             each reward function's own values
``_compute_loss``                  what the loss saw: current, old and reference log-probs, entropy, advantages, masks
=================================  =====================================================================================

Every wrapper is written so that an exception of ours ends the recording and not the training. Names were checked for TRL
0.23 to 1.16; a trainer without them is refused by ``attach``.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from credit_inspector.algorithms.from_trl import algorithm_of
from credit_inspector.errors import UsageError
from credit_inspector.live import Header, Recorder
from credit_inspector.rollout import Rollout, Step

log = logging.getLogger("credit_inspector")

_WRAPPED = (
    "_generate_and_score_completions",
    "_calculate_rewards",
    "_compute_loss",
    "_get_per_token_logps_and_entropies",
)


def attach(
    trainer: Any,
    folder: str | Path | None = None,
    *,
    sinks: Sequence[str] = ("jsonl", "tensorboard"),
    keep: Callable[[int], bool] | None = None,
) -> TRLHook:
    """Record a TRL ``GRPOTrainer``; call it once, before ``trainer.train()``.

    Args:
        trainer: the trainer.
        folder: where the record goes; ``output_dir/credit_inspector`` by default.
        sinks: names of ``sinks/`` that get the figures of every step.
        keep: which optimizer steps are recorded (all by default); figures go out for every step.

    Returns:
        The hook; ``detach()`` takes it off again. Attaching twice gives the first hook back.

    Raises:
        UsageError: not a trainer that can be recorded.
        StoreError: the folder already holds a record.
    """
    if isinstance(present := getattr(trainer, "_credit_inspector", None), TRLHook):
        return present
    if missing := [name for name in _WRAPPED if not callable(getattr(trainer, name, None))]:
        raise UsageError(f"{type(trainer).__name__} has no {missing[0]}", wanted="a TRL GRPOTrainer (0.23 to 1.16)")
    return TRLHook(trainer, Path(folder or Path(trainer.args.output_dir) / "credit_inspector"), sinks, keep)


@dataclass(slots=True)
class _Batch:
    """One generation batch, in generation order, as numpy."""

    number: int
    policy_version: int
    prompt_ids: list[np.ndarray] = field(default_factory=list)
    response_ids: list[np.ndarray] = field(default_factory=list)
    masks: list[np.ndarray] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    responses: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    rewards: list[dict[str, float | None]] = field(default_factory=list)
    totals: list[float | None] = field(default_factory=list)
    sampled: np.ndarray | None = None
    extra: list[dict[str, Any]] = field(default_factory=list)


class TRLHook:
    """A recording in progress."""

    def __init__(self, trainer: Any, folder: Path, sinks: Sequence[str], keep: Callable[[int], bool] | None) -> None:
        self._trainer = trainer
        self._batch: _Batch | None = None
        self._batches = 0
        self._rewards: Any = None
        self._seen_loss: tuple[Any, Any] | None = None
        self._rows: list[Rollout] = []
        self._in_loss = False
        self._off = False
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self._tokenizer = tokenizer
        self.recorder = Recorder(folder, self._header(tokenizer), sink_names=sinks, keep=keep)
        self._wrap()
        trainer.add_callback(_callback(self))
        trainer._credit_inspector = self

    @property
    def folder(self) -> Path:
        """Where the record goes."""
        return self.recorder.folder

    def detach(self) -> None:
        """Take the wrappers off and close the record."""
        for name in _WRAPPED:
            self._trainer.__dict__.pop(name, None)
        self._trainer.__dict__.pop("_credit_inspector", None)
        self._off = True
        self.recorder.close()

    # ── wrappers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _wrap(self) -> None:
        for name, look in (
            ("_generate_and_score_completions", self._around_generation),
            ("_calculate_rewards", self._around_rewards),
            ("_compute_loss", self._around_loss),
            ("_get_per_token_logps_and_entropies", self._around_logprobs),
        ):
            original = getattr(self._trainer, name)

            def wrapper(_trainer: Any, *args: Any, _look: Any = look, _original: Any = original, **kwargs: Any) -> Any:
                return _look(_original, *args, **kwargs)

            setattr(self._trainer, name, types.MethodType(wrapper, self._trainer))

    def _around_generation(self, original: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self._off or not self._trainer.model.training:
            return original(inputs, *args, **kwargs)
        with _Sampler(self._trainer) as sampler:
            output = original(inputs, *args, **kwargs)
        self._guard(self._take_batch, inputs, output, sampler)
        return output

    def _around_rewards(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._rewards = original(*args, **kwargs)
        return self._rewards

    def _around_loss(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._in_loss, self._seen_loss = True, None
        try:
            loss = original(model, inputs, *args, **kwargs)
        finally:
            self._in_loss = False
        if not self._off and self._trainer.model.training:
            self._guard(self._take_loss, inputs)
        return loss

    def _around_logprobs(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if self._in_loss and self._seen_loss is None:
            self._seen_loss = (answer[0], answer[1])
        return answer

    def _guard(self, look: Callable[..., None], *args: Any) -> None:
        try:
            look(*args)
        except Exception as error:  # whatever it is, the training goes on
            self._off = True
            log.warning("credit_inspector: recording ended at step %d: %r", self._trainer.state.global_step, error)

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_batch(self, inputs: Sequence[Any], output: dict[str, Any], sampler: _Sampler) -> None:
        import torch

        output["ci_row"] = torch.arange(len(output["completion_ids"]), device=output["completion_ids"].device)
        self._batches += 1
        batch = _Batch(self._batches - 1, int(self._trainer.state.global_step))
        loss_mask = output["completion_mask"]
        if "tool_mask" in output:
            loss_mask = loss_mask * output["tool_mask"]
        arrays = {name: output[name].cpu().numpy() for name in ("prompt_ids", "prompt_mask", "completion_ids")}
        masks = output["completion_mask"].cpu().numpy().astype(bool), loss_mask.cpu().numpy().astype(bool)
        size, rank = len(masks[0]), int(self._trainer.accelerator.process_index)
        names = list(self._trainer.reward_func_names)
        rewards = self._rewards.cpu().numpy()[rank * size : (rank + 1) * size]
        weights = self._trainer.reward_weights.cpu().numpy()
        named = {name: getattr(self._trainer, name, None) for name in ("temperature", "top_p", "top_k")}
        sampling = {name: value for name, value in named.items() if value is not None}
        for i in range(size):
            ids = arrays["completion_ids"][i]
            length = _length(masks[0][i], ids, self._trainer)
            batch.prompt_ids.append(arrays["prompt_ids"][i][arrays["prompt_mask"][i].astype(bool)].astype(np.int32))
            batch.response_ids.append(ids[:length].astype(np.int32))
            batch.masks.append(masks[1][i][:length])
            batch.groups.append(f"{batch.number}-{(rank * size + i) // self._trainer.num_generations}")
            batch.rewards.append({n: _number(v) for n, v in zip(names, rewards[i], strict=True)})
            batch.totals.append(_number(np.nansum(rewards[i] * weights)) if np.isfinite(rewards[i]).any() else None)
            batch.extra.append({**sampling, **{k: v for k, v in inputs[i].items() if k != "prompt" and _plain(v)}})
        batch.prompts = self._decode(batch.prompt_ids)
        batch.responses = self._decode(batch.response_ids)
        batch.sampled = sampler.logprobs(output)
        self._batch = batch

    def _take_loss(self, inputs: dict[str, Any]) -> None:
        if self._batch is None or self._seen_loss is None or "ci_row" not in inputs:
            return
        found = {
            "logprob/policy": self._seen_loss[0],
            "entropy/policy": self._seen_loss[1],
            "logprob/old": inputs.get("old_per_token_logps"),
            "logprob/ref": inputs.get("ref_per_token_logps"),
            "logprob/rollout": inputs.get("sampling_per_token_logps"),
            "rollout_weight": inputs.get("importance_sampling_ratio"),
            "advantage": inputs["advantages"],
        }
        columns = {name: _floats(value) for name, value in found.items() if value is not None}
        for at, row in enumerate(inputs["ci_row"].tolist()):
            self._rows.append(self._rollout(self._batch, row, {name: values[at] for name, values in columns.items()}))

    def _rollout(self, batch: _Batch, row: int, columns: dict[str, np.ndarray]) -> Rollout:
        length, mask = len(batch.response_ids[row]), batch.masks[row]
        if batch.sampled is not None and "logprob/rollout" not in columns:
            columns["logprob/rollout"] = batch.sampled[row]
        advantage = columns["advantage"]
        # What TRL has once for a response (advantage, sequence-level weight) stands on all of its tokens.
        laid = {name: np.broadcast_to(one, (length,)) if one.size == 1 else one[:length] for name, one in columns.items()}
        return Rollout(
            sample_id=f"{batch.number}-{row}",
            group_id=batch.groups[row],
            group_source="given",
            prompt=batch.prompts[row],
            response=batch.responses[row],
            prompt_ids=batch.prompt_ids[row],
            response_ids=batch.response_ids[row],
            loss_mask=mask,
            columns={n: np.where(mask, v, np.nan).astype(np.float32) for n, v in laid.items()},
            reward=batch.totals[row],
            rewards=batch.rewards[row],
            advantage=float(advantage) if advantage.ndim == 0 else None,
            policy_version=batch.policy_version,
            truncated=int(batch.response_ids[row][-1]) not in self._ends() if length else None,
            extra=batch.extra[row],
        )

    def flush(self) -> None:
        """Hand the optimizer step that has just ended to the recorder."""
        rows, self._rows = self._rows, []
        if rows:
            rows.sort(key=lambda r: tuple(map(int, r.sample_id.split("-"))))
            self.recorder.put(Step(int(self._trainer.state.global_step), tuple(rows)))

    def _ends(self) -> set[int]:
        return set(getattr(self._trainer, "eos_token_ids", None) or [self._tokenizer.eos_token_id])

    def _decode(self, ids: list[np.ndarray]) -> list[str]:
        return [self._tokenizer.decode(row.tolist(), skip_special_tokens=False) for row in ids]

    def _header(self, tokenizer: Any) -> Header:
        notes: list[str] = []
        try:
            algorithm = algorithm_of(self._trainer)
        except UsageError as error:
            algorithm = None
            notes.append(f"the rule is not one that can be computed: {error}")
        if self._trainer.accelerator.num_processes > 1:
            notes.append(f"rows of process {self._trainer.accelerator.process_index} only")
        return Header(
            trainer=f"trl {version('trl')}",
            algorithm=algorithm,
            save_tokenizer=tokenizer.save_pretrained,
            notes=notes,
        )


class _Sampler:
    """Takes down the log-probability of each token as it is sampled by ``generate``.

    A logits processor sees the scores before each choice and, one step later, what was chosen. It returns them untouched and
    keeps one ``[B, V]`` copy. Sampling settings such as top-p are not renormalised; the temperature is applied.
    """

    def __init__(self, trainer: Any) -> None:
        self._model = trainer.model
        self._temperature = float(trainer.temperature)
        self._rows: list[Any] = []
        self._last: Any = None

    def __enter__(self) -> _Sampler:
        if not self._model.__dict__.get("generate"):
            original = self._model.generate
            self._model.generate = lambda *args, **kwargs: self._generate(original, *args, **kwargs)
        return self

    def __exit__(self, *_: object) -> None:
        self._model.__dict__.pop("generate", None)

    def _generate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from transformers import LogitsProcessorList

        self._rows, self._last = [], None
        kwargs["logits_processor"] = LogitsProcessorList([*kwargs.get("logits_processor", []), self._look])
        ids = original(*args, **kwargs)
        try:
            if self._last is not None:
                self._take(ids[:, -1])
        except Exception as error:
            self._rows = []
            log.warning("credit_inspector: sampling log-probs are not recorded: %r", error)
        return ids

    def _look(self, input_ids: Any, scores: Any) -> Any:
        try:
            if self._last is not None:
                self._take(input_ids[:, -1])
            self._last = (scores.float() / self._temperature).log_softmax(-1)
        except Exception as error:
            self._rows, self._last = [], None
            log.warning("credit_inspector: sampling log-probs are not recorded: %r", error)
        return scores

    def _take(self, chosen: Any) -> None:
        self._rows.append(self._last.gather(-1, chosen[:, None])[:, 0])

    def logprobs(self, output: dict[str, Any]) -> np.ndarray | None:
        """``[B, T]`` sampled log-probs, or ``None`` when this generation did not go through ``generate``."""
        import torch

        if len(self._rows) < output["completion_ids"].shape[1]:
            return None
        return _floats(torch.stack(self._rows, dim=1))


def _callback(hook: TRLHook) -> Any:
    from transformers import TrainerCallback

    class Flush(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            hook._guard(hook.flush)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            hook.recorder.close()

    return Flush()


def _length(mask: np.ndarray, ids: np.ndarray, trainer: Any) -> int:
    """Tokens before the padding; a truncated response whose mask TRL zeroed still has its tokens."""
    if mask.any():
        return int(np.flatnonzero(mask)[-1]) + 1
    kept = np.flatnonzero(ids != trainer._tokenizer.pad_token_id)
    return int(kept[-1]) + 1 if len(kept) else 0


def _floats(tensor: Any) -> np.ndarray:
    values: np.ndarray = tensor.detach().float().cpu().numpy()
    return values


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | list | dict | None)
