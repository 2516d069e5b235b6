"""`antiphon audit`: reads every replica of every shard and says whether they agree."""

from typing import Annotated, Final

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command
from antiphon.cli.output import EXIT_FAILED, progress, say, usage
from antiphon.cli.spark_support import Master, spark_job

REPLICA_TIMEOUT_S: Final = 10.0


@command("audit", "antiphon audit --topics flights --tables aircraft --json")
def audit(
    topics: Annotated[
        str | None,
        typer.Option("--topics", help="Only these topics, separated by commas (__cluster is one)."),
    ] = None,
    tables: Annotated[
        str | None, typer.Option("--tables", help="Only these tables, separated by commas.")
    ] = None,
    internal: Annotated[
        bool, typer.Option("--internal/--no-internal", help="Also what belongs to the cluster itself.")
    ] = True,
    replica_timeout: Annotated[
        float, typer.Option("--replica-timeout", help="Seconds to wait for a replica before it is reported.")
    ] = REPLICA_TIMEOUT_S,
    master: Master = None,
    common: CommonOptions = COMMON,
) -> None:
    """Read every replica of every shard up to one cut and prove that they agree. Exit code 1 unless they do.

    Compared are bytes, offsets without gap or repeat, terms, each producer's markers, and tables with their logs. Writes may
    go on meanwhile. The verdict is agree, differs, or incomplete where a replica could not be read.
    """
    # Only here, so that other commands start without it.
    from antiphon.spark.jobs.audit_model import AGREE
    from antiphon.spark.jobs.audit_plan import Scope, plan_audit
    from antiphon.spark.option_values import parse_servers

    if replica_timeout <= 0:
        usage(f"--replica-timeout is more than 0 seconds, not {replica_timeout}")
    addresses = parse_servers(common.addresses())
    scope = Scope(_names(topics), _names(tables), internal=internal)
    with progress("fixing the cut"):  # before Spark starts: a wrong name is refused at once
        plan = plan_audit(addresses, scope, timeout_ms=max(1, int(replica_timeout * 1000)))
    with spark_job("antiphon audit", master) as spark:
        from antiphon.spark import job_progress
        from antiphon.spark.jobs.audit_job import run_plan

        with job_progress(spark, "auditing") as bar:
            report = run_plan(spark, plan, bar.describe)
    say(report.text(), report.as_dict(), as_json=common.as_json)
    if report.verdict != AGREE:
        raise typer.Exit(EXIT_FAILED)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
