"""``python -m tests.notebook``: a real Jupyter kernel, in an environment of its own, shows a query and a stream."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ipykernel", "nbclient")
CELLS = """
import sys, tempfile
from tests.support.engine_jobs import FakeClock, batches_of, keyed_slow
from penstock.testing.inline import InlineRun
clock = FakeClock()
output = keyed_slow(clock, "notebook")
output
# ---
run = InlineRun(batches_of(500, 20), clock)
query = run.start(output, checkpoint=tempfile.mkdtemp(), epoch="100 ms", parallelism=3)
query.watch("100 ms")
# ---
query
"""
SCRIPT = """
import nbformat
from nbclient import NotebookClient
from tests.notebook.__main__ import CELLS
cells = [nbformat.v4.new_code_cell(part) for part in CELLS.split("# ---")]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
shown = [[part["data"]["text/html"] for part in cell.outputs if "data" in part] for cell in notebook.cells]
assert [len(cell) for cell in shown] == [1, 1, 1], "one picture per cell: the live one was updated"
(stream,), (live,), (ended,) = shown
assert "by user" in stream and "<svg" in stream
assert "finished" in live and "last" in live, "the live panel shows the end"
assert "finished" in ended
print("a kernel shows the stream, the live panel and the query")
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="penstock-notebook-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin/python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        own = Path(subprocess.check_output(asked, text=True).strip())
        (own / "penstock.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run([python, "-c", SCRIPT], env=environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
