# SPDX-License-Identifier: Apache-2.0
"""Records a terminal session as a picture: ``python docs/pictures/record.py``.

Each command runs in a real pseudo-terminal, in an empty folder; what it printed, colours included,
becomes ``session.svg`` and, as plain text, ``session.txt``.
"""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from rich.console import Console
from rich.text import Text

PLACE = Path(__file__).parent
WIDTH, HEIGHT = 112, 40
COMMANDS = (
    "dpcohort new digits.toml --from digits",
    "dpcohort plan digits.toml",
    "dpcohort explain client-03 digits.toml",
    "dpcohort train digits.toml --out runs/first --set training.rounds=40",
    "dpcohort verify runs/first",
    "dpcohort watch runs/first --once",
)


def printed(command: str, folder: str) -> str:
    """What a command prints on a terminal of this width."""
    here, there = pty.openpty()
    ioctl(there, TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    words = [sys.executable, "-m", *command.split()]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    with subprocess.Popen(
        words, cwd=folder, stdin=there, stdout=there, stderr=there, env=environment
    ) as process:
        os.close(there)
        content = b""
        while True:
            try:
                chunk = os.read(here, 65_536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            content += chunk
    os.close(here)
    if process.returncode:
        raise SystemExit(f"{command} failed: {content.decode(errors='replace')}")
    return screen_after(content.decode())


def screen_after(content: str) -> str:
    """The lines that are left on the screen: a live picture that was wiped is gone."""
    lines: list[str] = [""]
    row = 0
    position = 0
    while position < len(content):
        rest = content[position:]
        if rest.startswith("\x1b[1A"):  # up a line
            row, position = max(0, row - 1), position + 4
        elif rest.startswith("\x1b[2K"):  # wipe the line
            lines[row], position = "", position + 4
        elif rest.startswith(("\x1b[?25l", "\x1b[?25h")):  # hide or show the cursor
            position += 6
        elif rest[0] == "\r":
            position += 1
        elif rest[0] == "\n":
            row, position = row + 1, position + 1
            if row == len(lines):
                lines.append("")
        else:
            lines[row], position = lines[row] + rest[0], position + 1
    return "\n".join(lines).rstrip("\n")


def offline(svg: str) -> str:
    """Without fonts that a reader's browser would fetch from elsewhere."""
    return re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", svg, flags=re.S)


def main() -> None:
    """Record the session."""
    with open(os.devnull, "w") as nowhere:
        screen = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        with tempfile.TemporaryDirectory() as folder:
            for command in COMMANDS:
                screen.print(Text(f"$ {command}", style="bold green"))
                screen.print(Text.from_ansi(printed(command, folder)))
                screen.print()
    text = screen.export_text(clear=False)
    (PLACE / "session.txt").write_text(
        "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    )
    svg = screen.export_svg(title="dpcohort", unique_id="dpcohort")
    (PLACE / "session.svg").write_text(offline(svg))
    print("wrote docs/pictures/session.svg and session.txt")


if __name__ == "__main__":
    main()
