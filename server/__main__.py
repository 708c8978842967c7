"""``python -m server CONFIG.toml``: the command line.

Everything but the standard library is imported late: a signal in the first moments, while modules
load, must end the process as quietly as later ones do.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

EXIT_CONFIG = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for a configuration that cannot work."""
    # Until the event loop brings handlers of its own there is nothing to clean up, and an exception
    # in the midst of an import would not always get through.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    from engine.config import ConfigError  # noqa: PLC0415
    from server.config import load_config  # noqa: PLC0415

    options = _parser().parse_args(arguments)
    try:
        config = load_config(
            options.config,
            options.overrides,
            {"server.host": options.host, "server.port": options.port},
        )
        # Later still: mistakes in the configuration should show at once.
        from server.startup import serve  # noqa: PLC0415

        return serve(config)
    except ConfigError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return 0


def _parser() -> argparse.ArgumentParser:
    from server.config_help import config_help  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        prog="python -m server",
        description="OpenAI-compatible inference server with DFlash speculative decoding.",
        epilog=config_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG.toml", help="configuration file")
    parser.add_argument("--host", help="the same as --set server.host=HOST")
    parser.add_argument("--port", help="the same as --set server.port=PORT")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="table.key=value",
        action="append",
        default=[],
        help="override a key of the configuration file; may be repeated",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
