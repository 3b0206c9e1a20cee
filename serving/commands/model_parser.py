"""The arguments of the commands that act on one model of a server."""

import argparse


def model_parser(command: str, description: str) -> argparse.ArgumentParser:
    """`millpond COMMAND MODEL [--target HOST:PORT]`."""
    parser = argparse.ArgumentParser(
        prog=f"millpond {command}", description=description, allow_abbrev=False
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--target", default="localhost:8500", help="default %(default)s")
    return parser
