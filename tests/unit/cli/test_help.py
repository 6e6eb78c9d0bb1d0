"""`--help` answers at once: no command imports torch, pandas or matplotlib to say what it does."""

import subprocess
import sys

from fnll.cli import COMMANDS, report
from fnll.report.document import TARGETS
from fnll.report.select import RULES

PROBE = """
import contextlib, io, sys
from fnll.cli import main
for command in {commands}:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main([command, "--help"])
    heavy = [name for name in ("torch", "lightning", "matplotlib", "pandas", "sklearn", "scipy") if name in sys.modules]
    assert said.getvalue().strip() and not heavy, (command, heavy)
print("light")
"""


def test_help_of_every_command_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", PROBE.format(commands=list(COMMANDS))], capture_output=True, text=True)
    assert done.stdout.strip() == "light", done.stderr


def test_the_options_of_report_are_the_reports():
    assert tuple(RULES) == report.RULES
    assert ",".join(map(str, TARGETS)) == report.TARGETS
