"""Writes small tokenizers of each kind, and the ids that Hugging Face's library gives to difficult texts.

    npm install @anush008/tokenizers && python3 tests/tokens/make.py

The package has the library itself (tokenizers 0.22, built for Node.js). The merges are learned from README.md.
"""

import collections
import json
import pathlib
import re
import subprocess

FOLDER = pathlib.Path(__file__).parent
MARK = "\u2581"

TEXTS = [
    "", " ", "  ", "a", " a", "Hello world", "Hello  world's  end", "we'll we'LL I'M it'\u017f don't", "tabs\tand\n\nlines\r\n\r\n  x",
    "12 345 6789012 3.14", "\u00fcn\u00efc\u00f6d\u00e9 e\u0301 \u4f60\u597d\u3000\u4e16\u754c \U0001f600\U0001f1e9\U0001f1ea \u0663\u0664 \u2167", "trailing   ", "   leading",
    "a" * 50, "ab" * 40, "!!! ...\n\n--", "\u00a0nbsp\u00a0\u2028line", "x<|end|>y", "<|end|><|end|> <|end|>\n", "<|end<|end|>", MARK + "mark " + MARK + MARK,
    "the checkpoint, the tensors and the checkpoints: the checkpoint!", "\u0000\u0001\u007f", "if x == 1:\n    return {'a': [1,2]}\n",
]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_letters():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return {byte: chr(byte if byte in printable else next(others)) for byte in range(256)}


def learned(words, count):
    """The first merges of the words' symbols."""
    words = collections.Counter(map(tuple, words))
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        joined = collections.Counter()
        for word, times in words.items():
            out, i = [], 0
            while i < len(word):
                is_pair = word[i:i + 2] == best
                out.append(word[i] + word[i + 1] if is_pair else word[i])
                i += 2 if is_pair else 1
            joined[tuple(out)] += times
        words = joined
    return merges


def added(token, number, **more):
    return {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True,
            **more}


def tokenizer(vocab, merges, special, model=None, **parts):
    ids = {token: i for i, token in enumerate(dict.fromkeys(vocab + [a + b for a, b in merges]))}
    tokens = [added(token, ids.setdefault(token, len(ids)), **more) for token, more in special]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, **(model or {}), "vocab": ids, "merges": [" ".join(pair) for pair in merges]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, **parts, "model": model}


def byte_level(prefix, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def main():
    text = (FOLDER.parent.parent / "README.md").read_text()
    letters = byte_letters()
    words = re.findall(r" ?[A-Za-z]+| ?\d+| ?[^\sA-Za-z\d]+|\s+", text)
    by_bytes = learned([[letters[byte] for byte in word.encode()] for word in words], 250)
    by_marks = learned([list(word.replace(" ", MARK)) for word in words if word.isascii() and "\n" not in word], 200)
    alphabet, chars = list(letters.values()), sorted(set(re.findall(r"[!-~]", text))) + [MARK]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    end, unknown = [("<|end|>", {})], [("<unk>", {})]
    from_marks = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    to_marks = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}
    metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": True}
    all_of_them = {
        "gpt2": tokenizer(alphabet, by_bytes, end, pre_tokenizer=byte_level(False), decoder=byte_level(True)),
        "llama3": tokenizer(alphabet, by_bytes, end, {"ignore_merges": True}, decoder=byte_level(True), pre_tokenizer={
            "type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}, byte_level(False, False)]}),
        "digits": tokenizer(alphabet, by_bytes, end, decoder=byte_level(True), pre_tokenizer={
            "type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(False)]}),
        "prefixed": tokenizer(alphabet, by_bytes, end, pre_tokenizer=byte_level(True), decoder=byte_level(True)),
        "llama2": tokenizer(["<unk>", *byte_tokens, *chars], by_marks, unknown + end,
                            {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}, normalizer=to_marks, decoder=from_marks),
        "metaspace": tokenizer(["<unk>", *chars], by_marks, unknown + end, {"unk_token": "<unk>", "fuse_unk": True},
                               pre_tokenizer=metaspace, decoder=metaspace),
        "normalized": tokenizer(["<unk>", *chars], by_marks, unknown + [("<|end|>", {"normalized": True})], {"unk_token": "<unk>"},
                                normalizer={"type": "Replace", "pattern": {"String": " "}, "content": MARK}, decoder=from_marks),
    }
    expected = {"texts": TEXTS, "ids": {}, "decoded": {}}
    for name, parts in all_of_them.items():
        path = FOLDER / f"{name}.json"
        path.write_text(json.dumps(parts, ensure_ascii=False, separators=(",", ":")) + "\n")
        found = subprocess.run(["node", FOLDER / "reference.js", path], input=json.dumps(TEXTS), capture_output=True, text=True, check=True)
        expected["ids"][name], expected["decoded"][name] = json.loads(found.stdout)
    (FOLDER / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


main()
