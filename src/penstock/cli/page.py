"""``penstock ui`` and ``penstock report``: the page of one or several folders, served or written into a file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from penstock.cli.terminal import say
from penstock.errors import ConfigError, storage_failed
from penstock.observe.folder import Folder
from penstock.observe.page.document import document
from penstock.observe.page.html import page
from penstock.observe.page.server import make_server
from penstock.store import open_store
from penstock.text import printable

PORT = 9401


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True)
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
def ui(folders: tuple[str, ...], port: int) -> None:
    """Show one or several queries in a browser, running or dead. Reads only; answers this machine only."""
    try:
        server = make_server(list(folders), port)
    except OSError as error:
        raise ConfigError(
            f"--port={port}: {error.strerror or error}",
            cause="another program listens there, perhaps another `penstock ui`",
            next_step="choose another port, or --port 0 for any that is free",
        ) from error
    say(f"http://127.0.0.1:{server.server_address[1]}/   (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file; default: run.html.")
def report(folders: tuple[str, ...], output: Path | None) -> None:
    """Write the page of one or several queries into one HTML file, which opens without a server or a network."""
    target = output or Path("run.html")
    documents = [document(Folder(open_store(folder)).look()) for folder in folders]
    data = page({"queries": documents}).encode()
    if str(target) == "-":
        sys.stdout.buffer.write(data)
        return
    try:
        target.write_bytes(data)
    except OSError as error:
        raise storage_failed(str(target), error) from error
    say(printable(f"{target}: {len(data) / 1e6:.1f} MB"))
