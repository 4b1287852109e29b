"""The options of `ekiben conformance`. Imports nothing that takes time: every start of the command line comes here."""

import argparse
from pathlib import Path

__all__ = ["add_options"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `command.run` reads."""
    parser.add_argument("url", metavar="URL", nargs="?", default="", help="the server, as http://127.0.0.1:3000")
    parser.add_argument("--grpc", metavar="HOST:PORT", default="", help="check gRPC there too; grpcs:// for TLS")
    parser.add_argument(
        "--model",
        dest="models",
        action="append",
        default=[],
        metavar="NAME",
        help="a model to check with, where the server lists none or too many; repeatable",
    )
    parser.add_argument("--only", metavar="POINTS", default="", help="just these, as P,B3,J2b")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="for each point (10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--allow-load", default="", metavar="MODEL", help="this model may be loaded and unloaded")
    parser.add_argument(
        "-H",
        "--header",
        dest="headers",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="sent along; repeatable",
    )
    parser.add_argument("--cacert", default="", metavar="FILE", help="authorities to trust, as PEM")
    parser.add_argument("--cert", default="", metavar="FILE", help="a client certificate, as PEM")
    parser.add_argument("--key", default="", metavar="FILE", help="its key, as PEM")
    parser.add_argument("--insecure", action="store_true", help="trust any certificate (https only)")
    parser.add_argument("--list", action="store_true", help="list the points, and do nothing else")
    parser.add_argument("--make-models", type=Path, metavar="FOLDER", help="write small models to check with, and end")
