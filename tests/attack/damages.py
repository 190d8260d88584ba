"""Damages of files, drawn by a generator: flipped, cut, replaced, planted, opened to others."""

import json
import os
import shutil
from hashlib import sha256

LARGE = 1 << 20  # bytes of a file that is not read here
TEXTS = (
    b"", b"{", b"[]", b"{}", b"null", b"7", b"\xff\xfe", b"\x00" * 100, b"[" * 5000, b"[" * 40 + b"]" * 40, b"NaN",
    b"1e999",
    b"9" * 5000, b'{"made": 1e300, "name": ["x"]}', b'{"made": true, "compile_seconds": "soon", "name": {}}',
    b'{"key": "0000", "name": "\\u001b]0;owned\\u0007"}', b'{"name": "\\ud800"}', b'[{"direction": ["dq"]}]', b"\n\n\n",
    b'[{"winner": {}}]', b'[{"winner": [16, 16, 4, 2, 0, false, 0], "direction": "dq"}]', b'{"hash": 7}', b"a  b\n",
)  # fmt: skip


def flip(dice, path):
    """One bit."""
    data = bytearray(path.read_bytes())
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def cut(dice, path):
    os.truncate(path, dice.randrange(path.stat().st_size + 1))


def grow(dice, path):
    with path.open("ab") as file:
        file.write(dice.choice(TEXTS) + bytes(dice.randrange(100)))


def replace(dice, path):
    path.write_bytes(dice.choice(TEXTS))


def shuffle(dice, path):
    lines = path.read_bytes().split(b"\n")
    dice.shuffle(lines)
    path.write_bytes(b"\n".join(lines))


def gone(dice, path):
    path.unlink()


def directory(dice, path):
    path.unlink()
    path.mkdir()


def fifo(dice, path):
    path.unlink()
    os.mkfifo(path)


def link(dice, path):
    path.unlink()
    path.symlink_to(dice.choice(["/dev/zero", "/dev/null", "/nowhere", path.parent, "/etc/passwd"]))


def huge(dice, path):
    os.truncate(path, dice.choice([65 << 20, 1 << 33]))


def shared(dice, path):
    path.chmod(dice.choice([0o666, 0o646, 0o777]))


def more(dice, path):
    (path.parent / dice.choice(["more", ".hidden", "\x1b]0;owned\x07", "a" * 200])).write_bytes(dice.choice(TEXTS))


def many(dice, path):
    for number in range(dice.randrange(30, 60)):
        (path.parent / f"more{number}").touch()


KINDS = (
    flip, flip, flip, cut, cut, grow, replace, replace, shuffle, gone, directory, fifo, link, huge, shared, more, many,
)  # fmt: skip


def refit(entry):
    """Check sums that fit what stands there: whoever can write an entry can do that, too."""
    sums = entry / "SHA256SUMS"
    if not sums.is_file() or sums.is_symlink() or sums.stat().st_size > LARGE:
        return
    names = [line.split("  ", 1)[-1] for line in sums.read_text(errors="replace").splitlines()]
    lines = []
    for name in names:
        file = entry / name
        if len(name) < 100 and "/" not in name and "\0" not in name and file.is_file() and file.stat().st_size < LARGE:
            lines.append(f"{sha256(file.read_bytes()).hexdigest()}  {name}\n")
    sums.write_text("".join(lines))


def copied(source, place):
    """A fresh copy of a store, whatever stood at its place."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)


def drawn_json(dice, depth=3):
    """Some value that JSON can say."""
    leaves = [
        None,
        True,
        False,
        0,
        -1,
        7,
        64,
        10**18,
        10**40,
        0.5,
        1e300,
        "",
        "dq",
        "forward",
        "\x1b[2J",
        "evil",
        "x" * 600,
    ]
    kind = dice.random()
    if depth == 0 or kind < 0.6:
        return dice.choice(leaves)
    if kind < 0.8:
        return [drawn_json(dice, depth - 1) for _ in range(dice.randrange(8))]
    return {
        dice.choice(["a", "winner", "direction", "tiling", "key", ""]): drawn_json(dice, depth - 1) for _ in range(3)
    }


def mutated(dice, value):
    """A value of JSON with one part exchanged, taken away or added."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        name = dice.choice(sorted(value))
        fate = dice.random()
        if fate < 0.15:
            return {key: x for key, x in value.items() if key != name}
        if fate < 0.25:
            return {**value, "more": drawn_json(dice)}
        return {**value, name: mutated(dice, value[name])}
    if isinstance(value, list) and value and dice.random() < 0.9:
        place = dice.randrange(len(value))
        return [*value[:place], mutated(dice, value[place]), *value[place + 1 :]]
    return drawn_json(dice)


def text_of(value):
    return json.dumps(value).encode()
