"""Token ids → the text that each token stands for, character by character.

Byte-level vocabularies cut characters: one emoji may be four tokens, none of which is text alone. Here a character
stands whole on the first token that carries a byte of it, and the tokens that only continue it hold no text::

    ids      = [F0, 9F, 98, 80, " ok"]
    text     = ("😀", "", "", "", " ok")
    clusters = [0, 0, 0, 0, 4]

Values stay per token; only the text is shared. Joined, the text equals the decoded whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from credit_inspector.errors import FormatError, MissingExtra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_UNFINISHED = "\ufffd"
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_CONTEXT = 32
"""Tokens decoded before a token to see what it adds: a character has at most four bytes, a token at least one."""
_SLOW_FILES = ("tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True, slots=True)
class Pieces:
    """The text of one sequence of ``L`` tokens."""

    text: tuple[str, ...]
    """``[L]`` each token's own text; empty where the token only continues a character begun before."""
    clusters: NDArray[np.int32]
    """``[L]`` the position of the token on which this token's character stands."""


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder looks as if a tokenizer could be loaded from it."""
    return any((folder / name).is_file() for name in ("tokenizer.json", *_SLOW_FILES))


def load_tokenizer(path: Path) -> Tokenizer:
    """Load from a ``tokenizer.json`` or a folder that holds one, else from a folder of older tokenizer files.

    Raises:
        FormatError: no tokenizer there, or one that cannot be read.
        MissingExtra: ``tokenizers``, or for older files ``transformers``, is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("tokenizers", "compute") from None
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        return _from_older_files(path)
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises bare Exception
        raise FormatError(f"{file} is no tokenizer: {error}", wanted="a tokenizer.json") from error
    return _whole(tokenizer)


def _from_older_files(path: Path) -> Tokenizer:
    """Let transformers convert vocabulary files that come without a ``tokenizer.json``."""
    if not path.is_dir() or not has_tokenizer(path):
        raise FormatError(f"no tokenizer at {path}", wanted="tokenizer.json", do="name a folder that holds one")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra("transformers", "compute") from None
    try:
        loaded = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # every tokenizer class raises its own
        raise FormatError(f"{path} holds no tokenizer that loads: {error}", wanted="tokenizer.json") from error
    backend: Tokenizer | None = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise FormatError(
            f"{path} holds a tokenizer written in Python ({type(loaded).__name__})",
            wanted="tokenizer.json",
            do="save it as a fast tokenizer",
        )
    return _whole(backend)


def _whole(tokenizer: Tokenizer) -> Tokenizer:
    """Take off the padding and the length limit that a saved file may carry."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> NDArray[np.int32]:
    """Text → ids ``[L]``, no special token added; only for dumps that hold no ids.

    A special token written out in the text (``<eos>``) becomes that token. Half a surrogate pair becomes U+FFFD.
    """
    clean = _HALF_PAIR.sub(_UNFINISHED, text)
    return np.array(tokenizer.encode(clean, add_special_tokens=False).ids, dtype=np.int32)


def special(tokenizer: Tokenizer, ids: Sequence[int] | NDArray[np.int32]) -> NDArray[np.bool_]:
    """``[L]`` true where the token is a special one such as ``<eos>``: trained, yet often left out of dumped text."""
    marked = [number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    return np.isin(np.asarray(ids, dtype=np.int64), marked)


def end_ids(folder: Path) -> tuple[int, ...]:
    """Ids on which a model stops, from what lies beside its weights or its tokenizer; empty where nothing says so.

    ``generation_config.json`` may name several, so it goes before ``config.json``.
    """
    for name in ("generation_config.json", "config.json"):
        try:
            said = json.loads((folder / name).read_bytes()).get("eos_token_id")
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
        ids = said if isinstance(said, list) else [said]
        if found := tuple(one for one in ids if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 2**31):
            return found
    return ()


def until_end(ids: ArrayLike, ends: Collection[int]) -> NDArray[np.bool_]:
    """``[…, L]`` true up to and with a sequence's first end id, false after it; true throughout where none ends it.

    The end is a sampled action and keeps its credit; what repeats it afterwards is fill. Models stop on any of several ids
    (``generation_config.eos_token_id``), so all of them count. As verl 0.9.1 ``torch_functional.get_response_mask``.
    """
    end = np.isin(np.asarray(ids), list(ends))
    return np.asarray(np.cumsum(end, axis=-1) - end == 0)


def has_end(ids: ArrayLike, ends: Collection[int]) -> NDArray[np.bool_]:
    """``[…]`` whether a sequence of ``[…, L]`` holds an end id; one that does not was cut off."""
    return np.asarray(np.isin(np.asarray(ids), list(ends)).any(axis=-1))


def token_bytes(tokenizer: Tokenizer, token: int) -> str:
    """What one token is by itself: its text, or its bytes as ``F0 9F`` where they are no whole character."""
    name = _name(tokenizer, token)
    if name is None:
        return f"<id {token}>"
    if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", name):
        return byte[1]
    text = tokenizer.decode([token], skip_special_tokens=False)
    codes = [_byte_of().get(character) for character in name]
    if _UNFINISHED in text and None not in codes:
        return " ".join(f"{code:02X}" for code in codes)
    return text or name


def _byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [code for code in range(256) if code not in set(printable)]
    return {chr(code): code for code in printable} | {chr(256 + i): code for i, code in enumerate(rest)}


def pieces(tokenizer: Tokenizer, ids: Sequence[int] | NDArray[np.int32]) -> Pieces:
    """The text of each token ``[L]``.

    Bytes that never become a character show as U+FFFD. An id outside the vocabulary (padded embeddings, a foreign
    tokenizer) shows as ``<id 152000>`` and takes no part in the decoding. Special tokens show as their own text.
    """
    numbers = [int(number) for number in ids]
    strange = {number for number in set(numbers) if _name(tokenizer, number) is None}
    known = [place for place, number in enumerate(numbers) if number not in strange]
    text = [f"<id {number}>" if number in strange else "" for number in numbers]
    clusters = np.arange(len(numbers), dtype=np.int32)
    words, firsts = _decode(tokenizer, [numbers[place] for place in known])
    for place, word, first in zip(known, words, firsts, strict=True):
        text[place] = word
        clusters[place] = known[first]
    return Pieces(tuple(text), clusters)


def unnamed(tokenizer: Tokenizer, ids: ArrayLike) -> list[int]:
    """The ids, each once and ascending, for which the tokenizer has no token: padding ids of a larger model, or foreign ones."""
    return [int(number) for number in np.unique(np.asarray(ids, np.int64)) if _name(tokenizer, int(number)) is None]


def _name(tokenizer: Tokenizer, token: int) -> str | None:
    name: str | None = tokenizer.id_to_token(token) if 0 <= token < 2**32 else None
    return name


def _decode(tokenizer: Tokenizer, ids: list[int]) -> tuple[list[str], list[int]]:
    """Text and first token of each id, all of which are in the vocabulary."""
    if not ids:
        return [], []
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    words = [""] * len(ids)
    firsts = list(range(len(ids)))
    windows = _windows(tokenizer, ids, whole) or [(0, len(ids), whole)]
    for start, end, text in windows:
        if end == start + 1:
            words[start] = text
        else:
            words[start:end], firsts[start:end] = _share_out(tokenizer, ids, start, end, text)
    return words, firsts


def _windows(tokenizer: Tokenizer, ids: list[int], whole: str) -> list[tuple[int, int, str]]:
    """Stretches of tokens that decode to whole characters, with their text; empty where streaming gives other text.

    It does for decoders that take back what they gave: with byte fallback one stray byte undoes the bytes before it.
    Long runs of broken bytes are given up on as well, since the stream decodes its whole unfinished end at every token.
    """
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    windows: list[tuple[int, int, str]] = []
    start = length = 0
    try:
        for place, number in enumerate(ids):
            text = stream.step(tokenizer, number)
            if text is not None:
                windows.append((start, place + 1, text))
                start, length = place + 1, length + len(text)
            elif place - start > 2 * _CONTEXT:
                return []
    except Exception:  # "Invalid prefix encountered", raised as bare Exception
        return []
    if start < len(ids):
        windows.append((start, len(ids), whole[length:]))
    return windows if "".join(text for _, _, text in windows) == whole else []


def _share_out(tokenizer: Tokenizer, ids: list[int], start: int, end: int, text: str) -> tuple[list[str], list[int]]:
    """Give each character of a stretch to the token that begins it.

    ``lengths[k]`` characters are decoded once token k is in. A character begins at the token from which on the length
    stays above its place, since a decoder may show two broken bytes as two marks before they become one character.
    """
    lengths, pending = _lengths(tokenizer, ids, start, end, _CONTEXT)
    if lengths[-1] != len(text):
        lengths, pending = _lengths(tokenizer, ids, start, end, len(ids))
    bounds = np.minimum(np.minimum.accumulate(np.array(lengths[::-1]))[::-1], len(text))
    bounds = np.maximum(bounds, 0)
    bounds[-1] = len(text)
    words = [text[low:high] for low, high in zip([0, *bounds[:-1]], bounds, strict=True)]
    firsts: list[int] = []
    for place, word in enumerate(words):
        goes_on = place > 0 and not word and pending[place - 1]
        firsts.append(firsts[-1] if goes_on else start + place)
    return words, firsts


def _lengths(tokenizer: Tokenizer, ids: list[int], start: int, end: int, context: int) -> tuple[list[int], list[bool]]:
    """Characters decoded after each token of a stretch, and whether the text then ends unfinished."""
    lengths: list[int] = []
    pending: list[bool] = []
    total = 0
    for place in range(start, end):
        near = max(0, place - context)
        before = tokenizer.decode(ids[near:place], skip_special_tokens=False)
        after = tokenizer.decode(ids[near : place + 1], skip_special_tokens=False)
        total += len(after) - len(before)
        lengths.append(total)
        pending.append(after.endswith(_UNFINISHED))
    return lengths, pending
