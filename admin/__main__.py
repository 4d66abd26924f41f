"""The `mqadmin` command: finds the command, and tells mistakes (exit 2) and failures (exit 1) in one line each."""

import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from cometmq.admin import catalogue
from cometmq.admin.command import PROGRAM, common_options, failure_line
from cometmq.protocol.errors import CometMQError


class MqAdmin(click.Group):
    """The commands by name, loaded when they are used. Names match in any case, as in Java."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "help":
            return _help
        return catalogue.load(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in catalogue.ENTRIES] + sorted(catalogue.plug_ins())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        found = self.get_command(ctx, args[0])
        if found is None:
            raise click.UsageError(unknown(args[0]))
        return found.name, found, args[1:]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(catalogue.overview() + "\n\n")
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Command.format_options(self, ctx, formatter)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run, and end with 0, 1 or 2."""
        name = ""
        given = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            name = next((arg for arg in given if not arg.startswith("-")), "")
            super().main(given, prog_name=PROGRAM, **extra)
        except click.UsageError as error:
            asked = error.ctx.info_name if error.ctx is not None and error.ctx.parent is not None else ""
            _complain(f"{PROGRAM}{f' {asked}' if asked else ''}: {_usage(error)}", 2)
        except click.ClickException as error:
            _complain(f"{PROGRAM}: {error.format_message()}", error.exit_code)
        except (CometMQError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                sys.stderr.close()
                sys.exit(1)
            _complain(failure_line(name, error), 1)
        except (KeyboardInterrupt, click.Abort):
            sys.exit(130)
        sys.exit(0)


def unknown(name: str) -> str:
    """What is said about a command that there is not."""
    near = difflib.get_close_matches(name, [entry.name for entry in catalogue.ENTRIES], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"{PROGRAM} without arguments lists the commands"
    return f"The sub command {name} not exist.; {hint}"


def _usage(error: click.UsageError) -> str:
    text = " ".join(error.format_message().split())
    asked = error.ctx.info_name if error.ctx is not None and error.ctx.parent is not None else ""
    return text if not asked else f"{text.rstrip('.')}; see {PROGRAM} {asked} -h"


def _complain(text: str, code: int) -> NoReturn:
    print(" ".join(text.splitlines()), file=sys.stderr)
    sys.exit(code)


@click.command("help", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="COMMAND", required=False)
@click.pass_context
def _help(ctx: click.Context, name: str | None) -> None:
    """What a command does and which options it takes."""
    assert ctx.parent is not None
    if name is None:
        click.echo(ctx.parent.get_help())
        return
    found = catalogue.load(name)
    if found is None:
        raise click.UsageError(unknown(name))
    with found.make_context(found.name, [], parent=ctx.parent, resilient_parsing=True) as inner:
        click.echo(found.get_help(inner))


@click.pass_context
def _overview(ctx: click.Context, /, **settings: Any) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(catalogue.overview())


main = MqAdmin(
    PROGRAM,
    params=common_options(),
    callback=_overview,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

if __name__ == "__main__":
    main()
