"""The arguments of the commands that act on one model of a server."""

import argparse

from serving.commands.argument_types import add_target, model_name


def model_parser(command: str, description: str) -> argparse.ArgumentParser:
    """`millpond COMMAND MODEL [--target HOST:PORT]`."""
    parser = argparse.ArgumentParser(
        prog=f"millpond {command}", description=description, allow_abbrev=False
    )
    parser.add_argument("model", type=model_name, metavar="MODEL")
    add_target(parser)
    return parser
