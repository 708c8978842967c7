"""``python -m server CONFIG.toml``: the command line."""

import argparse
import signal
import sys
from collections.abc import Sequence

from engine.config import ConfigError
from server.config import load_config
from server.config_help import config_help

EXIT_CONFIG = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for a configuration that cannot work."""
    # From here on; the event loop brings handlers of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    options = _parser().parse_args(arguments)
    try:
        config = load_config(options.config, _overrides(options))
        # Imported late: mistakes in the configuration should show at once.
        from server.startup import serve  # noqa: PLC0415

        return serve(config)
    except ConfigError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return 0


def _parser() -> argparse.ArgumentParser:
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


def _overrides(options: argparse.Namespace) -> list[str]:
    """All overrides; --host and --port come last and win."""
    named = {"server.host": options.host, "server.port": options.port}
    given = [f"{key}={value}" for key, value in named.items() if value is not None]
    return [*options.overrides, *given]


if __name__ == "__main__":
    sys.exit(main())
