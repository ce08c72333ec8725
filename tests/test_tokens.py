"""The text of each token: whole characters on their first token, every token once, joined the decoded whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from credit_inspector.errors import FormatError
from credit_inspector.tokens import encode, has_end, load_tokenizer, pieces, special, token_bytes, until_end


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen have it, with some merges that cut characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<bos>", "<eos>", "<｜end｜>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello ok 世界 今日は 😀"] * 20, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2 and Gemma have it: a token for each byte, runs of which decode together or not at all."""
    words = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁a": 256, "b": 257, "<s>": 258}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()
BYTE_TOKEN = {token_bytes(BYTE_LEVEL, token): token for token in range(BYTE_LEVEL.get_vocab_size())}


def tokens_of(raw: bytes) -> list[int]:
    """One byte-level token a byte, of bytes that are no ASCII."""
    return [BYTE_TOKEN[f"{byte:02X}"] for byte in raw]


def test_character_of_four_tokens_stands_on_the_first_d07() -> None:
    ids = tokens_of("😀".encode()) + BYTE_LEVEL.encode(" ok").ids
    found = pieces(BYTE_LEVEL, ids)
    assert found.text[:4] == ("😀", "", "", "")
    assert found.clusters[:4].tolist() == [0, 0, 0, 0]
    assert found.clusters[4:].tolist() == list(range(4, len(ids)))
    assert "".join(found.text) == "😀 ok"
    assert [token_bytes(BYTE_LEVEL, token) for token in ids[:4]] == ["F0", "9F", "98", "80"]


def test_token_that_ends_one_character_and_begins_the_next_holds_the_next() -> None:
    alphabet = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = "世界".encode()
    letters = [letter for byte in raw for letter in alphabet if token_of_byte(letter) == byte]
    joined = letters[2] + letters[3]
    tokenizer = Tokenizer(models.BPE(vocab={**alphabet, joined: len(alphabet)}, merges=[(letters[2], letters[3])]))
    tokenizer.decoder = decoders.ByteLevel()
    ids = [tokenizer.token_to_id(name) for name in (letters[0], letters[1], joined, letters[4], letters[5])]
    assert pieces(tokenizer, ids).text == ("世", "", "界", "", "")
    assert pieces(tokenizer, ids).clusters.tolist() == [0, 0, 2, 2, 2]


def token_of_byte(letter: str) -> int:
    """GPT-2's table backwards, by the decoder itself."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [code for code in range(256) if code not in printable]
    return ord(letter) if ord(letter) in printable else rest[ord(letter) - 256]


def test_incomplete_bytes_show_as_replacement_and_keep_their_neighbours() -> None:
    ids = [*tokens_of(b"\xf0"), *BYTE_LEVEL.encode(" ok").ids, *tokens_of("😀".encode()[:2])]
    found = pieces(BYTE_LEVEL, ids)
    assert found.text[0] == "\ufffd"
    assert "".join(found.text[1:-2]) == " ok"
    assert found.text[-2:] == ("\ufffd", "")


def test_special_tokens_show_and_are_counted_d10() -> None:
    bos, eos = BYTE_LEVEL.token_to_id("<bos>"), BYTE_LEVEL.token_to_id("<eos>")
    letter_a, letter_b = BYTE_LEVEL.encode("A").ids[0], BYTE_LEVEL.encode("B").ids[0]
    assert pieces(BYTE_LEVEL, [letter_a, eos]).text == ("A", "<eos>")
    ids = [letter_a, bos, letter_b, eos]
    assert pieces(BYTE_LEVEL, ids).text == ("A", "<bos>", "B", "<eos>")
    assert special(BYTE_LEVEL, ids).tolist() == [False, True, False, True]
    assert pieces(BYTE_LEVEL, [BYTE_LEVEL.token_to_id("<｜end｜>")]).text == ("<｜end｜>",)


def test_ids_outside_the_vocabulary_show_as_ids_g04() -> None:
    word = BYTE_LEVEL.encode("A").ids[0]
    assert pieces(BYTE_LEVEL, [word, 151900]).text == ("A", "<id 151900>")
    assert pieces(BYTE_LEVEL, [152000, -1]).text == ("<id 152000>", "<id -1>")
    assert token_bytes(BYTE_LEVEL, 152000) == "<id 152000>"


def test_byte_fallback_that_takes_back_a_character() -> None:
    ids = [0xE4, 0xB8, 0x96, 0xF0, 256]
    assert BYTE_FALLBACK.decode(ids) == "\ufffd" * 4 + " a"
    found = pieces(BYTE_FALLBACK, ids)
    assert "".join(found.text) == BYTE_FALLBACK.decode(ids)
    assert found.text[-1] == " a"
    assert pieces(BYTE_FALLBACK, [0xE4, 0xB8, 0x96, 256]).text == ("世", "", "", " a")


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=60))
@settings(max_examples=150, deadline=None)
def test_joined_is_the_decoded_whole_for_byte_level(ids: list[int]) -> None:
    check_law(BYTE_LEVEL, ids)


@given(st.lists(st.sampled_from([0xE4, 0xB8, 0x96, 0xF0, 0x9F, 0x98, 0x80, 0x41, 256, 257, 258]), max_size=40))
@settings(max_examples=150, deadline=None)
def test_joined_is_the_decoded_whole_for_byte_fallback(ids: list[int]) -> None:
    check_law(BYTE_FALLBACK, ids)


def check_law(tokenizer: Tokenizer, ids: list[int]) -> None:
    found = pieces(tokenizer, np.array(ids, dtype=np.int32))
    assert "".join(found.text) == tokenizer.decode(ids, skip_special_tokens=False)
    assert len(found.text) == len(found.clusters) == len(ids)
    places = np.arange(len(ids))
    assert (found.clusters <= places).all()
    assert (found.clusters[found.clusters] == found.clusters).all()
    assert all(not text for text, own in zip(found.text, found.clusters == places, strict=True) if not own)


def test_long_run_of_broken_bytes_is_linear() -> None:
    ids = tokens_of(b"\x80") * 4000
    assert pieces(BYTE_LEVEL, ids).text == ("\ufffd",) * 4000


def test_encode_adds_nothing_and_survives_half_a_pair() -> None:
    assert "".join(pieces(BYTE_LEVEL, encode(BYTE_LEVEL, "hello 世")).text) == "hello 世"
    assert encode(BYTE_LEVEL, "").dtype == np.int32
    assert "".join(pieces(BYTE_LEVEL, encode(BYTE_LEVEL, "a\ud83db")).text) == "a\ufffdb"


def test_load_takes_off_padding_and_length_limit(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert len(encode(load_tokenizer(path), "hello ok 世界")) == len(encode(BYTE_LEVEL, "hello ok 世界"))


def test_load_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no tokenizer at"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match="is no tokenizer"):
        load_tokenizer(tmp_path)


def test_older_files_are_converted(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = json.loads(BYTE_LEVEL.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert "".join(pieces(load_tokenizer(tmp_path), encode(load_tokenizer(tmp_path), "hello 世")).text) == "hello 世"


def test_the_first_end_keeps_its_credit_and_what_repeats_it_is_fill() -> None:
    assert until_end([5, 6, 2, 2, 2], [2]).tolist() == [True, True, True, False, False]
    assert until_end([5, 6, 7], [2]).all()
    assert until_end([], [2]).shape == (0,)


def test_any_of_several_end_ids_ends() -> None:
    assert has_end([[4, 5, 7], [4, 5, 9], [4, 5, 6]], [9, 7]).tolist() == [True, True, False]
    assert until_end([4, 7, 9, 5], {9, 7}).tolist() == [True, True, False, False]
    assert not has_end([], [9])


@given(st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), max_size=4), st.sets(st.integers(0, 4)))
def test_it_is_the_loop_up_to_the_first_end(rows: list[list[int]], ends: set[int]) -> None:
    expected = []
    for row in rows:
        at = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
        expected.append([place <= at for place in range(len(row))])
    assert until_end(np.array(rows).reshape(-1, 6), ends).tolist() == expected
