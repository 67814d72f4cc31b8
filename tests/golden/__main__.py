"""Writes the golden outputs anew: ``python -m tests.golden [--record]``.

Without an option the expected outputs are written from the recording that is checked in; read the
difference before you commit it, for each output is claimed to be the right answer. ``--record``
makes another recording first, on real engines, which takes a minute or two.
"""

from __future__ import annotations

import argparse

from tests.golden.commands import EXPECTED, commands, output


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--record", action="store_true", help="make another recording first")
    if parser.parse_args().record:
        # Engines are only needed, and only importable, where a recording is made.
        from tests.golden.recording import record

        record()
    EXPECTED.mkdir(exist_ok=True)
    wanted = {golden.file: output(golden) for golden in commands()}
    for stale in set(EXPECTED.glob("*.txt")) - wanted.keys():
        stale.unlink()
    for file, text in wanted.items():
        file.write_text(text)


if __name__ == "__main__":
    main()
