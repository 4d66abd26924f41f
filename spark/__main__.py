"""`python -m cometmq.spark JOB`, and the file that `spark-submit` is given (`--script` names it): the ready jobs."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from cometmq.spark.jobs.command import PROGRAM, complain


class Jobs(click.Group):
    """The jobs by name."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from cometmq.spark.jobs.commands import COMMANDS

        return COMMANDS.get(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        from cometmq.spark.jobs.commands import COMMANDS

        return [name for name in COMMANDS if name is not None]

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run, and end with 0, 1 or 2."""
        extra["standalone_mode"] = False
        if not (sys.argv[1:] if args is None else args):
            click.echo(self.get_help(self.make_context(PROGRAM, ["--help"], resilient_parsing=True)), err=True)
            sys.exit(2)
        try:
            super().main(args, prog_name=PROGRAM, **extra)
        except click.UsageError as error:
            asked = error.ctx.command_path if error.ctx is not None else PROGRAM
            complain(f"{asked}: {error.format_message().rstrip('.')}; see {asked} --help", 2)
        except click.ClickException as error:
            complain(f"{PROGRAM}: {error.format_message()}", error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            sys.exit(130)
        sys.exit(0)


def _show_script(ctx: click.Context, param: click.Parameter, is_wanted: bool) -> None:
    """Print this file's own path: spark-submit runs files, it knows no -m."""
    if is_wanted:
        click.echo(__file__)
        ctx.exit()


main = Jobs(
    "cometmq.spark",
    help="Ready pipeline jobs on Spark over RocketMQ topics.",
    params=[
        click.Option(
            ["--script"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_script,
            help="Print the file to give to spark-submit, and exit.",
        )
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

if __name__ == "__main__":
    main()
