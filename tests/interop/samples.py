"""Samples of exhaustive tests, another one each day, as in tests/lua/harness.lua: CBK_TESTS=all runs each case, CBK_TESTS_DAY=N repeats the sample of a day."""
import os
import time
import zlib

DAY = int(os.environ.get("CBK_TESTS_DAY") or time.time() // 86400)


def sample(cases, name, share):
    """One of `share` cases, and at least one; `name` tells this list from others."""
    if os.environ.get("CBK_TESTS") == "all":
        return cases
    turn = zlib.crc32(f"{DAY} {name}".encode())
    return [case for i, case in enumerate(cases) if (i + turn) % share == 0] or cases[turn % len(cases):][:1]
