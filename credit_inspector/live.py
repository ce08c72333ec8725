"""Recording a training run while it goes on, whatever the trainer.

A hook (``hooks/``) hands each optimizer step to a ``Recorder``; everything after that happens on the recorder's own
thread: one Parquet file a step, figures to the sinks. Training is never stopped, slowed by a full disk, or changed: the queue
is bounded and drops are counted, a sink or a writer that fails is switched off with one warning.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from credit_inspector.algorithm import Algorithm
from credit_inspector.errors import StoreError
from credit_inspector.rollout import Step
from credit_inspector.sinks import Sink, sinks
from credit_inspector.summary import figures
from credit_inspector.table import TokenTable
from credit_inspector.trainers import record

log = logging.getLogger("credit_inspector")

QUEUE_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a record says of its run as a whole."""

    trainer: str
    algorithm: Algorithm | None
    save_tokenizer: Callable[[Path], None] | None = None
    """Writes the tokenizer into the given folder."""
    notes: Sequence[str] = ()


class Recorder:
    """Takes steps from a training loop and writes them on a thread of its own."""

    def __init__(
        self,
        folder: Path,
        header: Header,
        *,
        sink_names: Sequence[str] = ("jsonl",),
        keep: Callable[[int], bool] | None = None,
    ) -> None:
        """Make the record's folder and open the sinks; ``keep`` says which steps are recorded (figures go out for all).

        Raises:
            StoreError: the folder already holds the steps of another run.
        """
        if any((folder / "steps").glob("*.parquet")):
            raise StoreError(f"{folder} already holds a record", wanted="an empty folder", do="name another folder")
        self.folder = folder
        self.algorithm = header.algorithm
        self.dropped = 0
        self.written = 0
        self._write_header(header)
        self._sinks: dict[str, Sink] = {}
        self._queue: queue.Queue[Step | None] = queue.Queue(maxsize=QUEUE_STEPS)
        self._keep = keep or (lambda step: True)
        self._recording = True
        self._thread = threading.Thread(target=self._work, args=(tuple(sink_names),), name="credit-inspector", daemon=True)
        self._thread.start()

    def put(self, step: Step) -> None:
        """Hand over a step; returns at once. A step that finds the queue full is dropped and counted."""
        try:
            self._queue.put_nowait(step)
        except queue.Full:
            self.dropped += 1

    def close(self, timeout: float = 60.0) -> None:
        """Write what is queued, close the sinks, and say how many steps were dropped. Closing twice is fine."""
        if not self._thread.is_alive():
            return
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            log.warning("credit_inspector: the writer did not catch up in %.0f s; its queue is abandoned", timeout)
            return
        self._thread.join(timeout)
        if self.dropped:
            log.warning("credit_inspector: %d steps were not recorded, the writer was too slow", self.dropped)

    def _write_header(self, header: Header) -> None:
        tokenizer = self.folder / "tokenizer"
        if header.save_tokenizer:
            tokenizer.mkdir(parents=True, exist_ok=True)
            header.save_tokenizer(tokenizer)
        record.write_header(
            self.folder,
            trainer=header.trainer,
            algorithm=header.algorithm,
            tokenizer="tokenizer" if header.save_tokenizer else None,
            notes=tuple(header.notes),
        )

    def _work(self, sink_names: Sequence[str]) -> None:
        for name in sink_names:
            try:
                self._sinks[name] = sinks[name](self.folder)
            except Exception as error:  # a sink is never worth a training run
                log.warning("credit_inspector: no %s sink: %s", name, error)
        while (step := self._queue.get()) is not None:
            self._write(step)
        for name, opened in self._sinks.items():
            try:
                opened.close()
            except Exception as error:
                log.warning("credit_inspector: closing the %s sink failed: %s", name, error)

    def _write(self, step: Step) -> None:
        if self._recording and self._keep(step.number):
            try:
                record.write_step(self.folder, step)
                self.written += 1
            except Exception as error:
                self._recording = False
                log.warning("credit_inspector: recording stopped at step %d: %s", step.number, error)
        if self._sinks:
            self._log(step)

    def _log(self, step: Step) -> None:
        try:
            algorithm = step.algorithm or self.algorithm
            values = figures(TokenTable.from_rollouts(step.number, step.rollouts, algorithm=algorithm))
        except Exception as error:
            log.warning("credit_inspector: no figures for step %d: %s", step.number, error)
            return
        for name, opened in list(self._sinks.items()):
            try:
                opened.scalars(step.number, values)
            except Exception as error:
                del self._sinks[name]
                log.warning("credit_inspector: the %s sink is switched off: %s", name, error)
