"""Each job's row is enough: its functions can be called, its command is there, and the docs have its section."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.cli.main import app
from antiphon.spark import jobs
from antiphon.spark.jobs import JOBS, Job

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.called)
def test_a_job_has_its_functions_its_command_and_its_section(job: Job) -> None:
    for name in (*job.functions, *job.results):
        assert name in dir(jobs)
        assert callable(getattr(jobs, name))
    shown = CliRunner().invoke(app, [*job.command.split()[1:], "--help"])
    assert shown.exit_code == 0, shown.output
    page, _, section = job.section.partition("#")
    titles = re.findall(r"^## (.*)$", (DOCS / (page or "jobs.md")).read_text(encoding="utf-8"), re.MULTILINE)
    assert not section or section in {title.lower().replace(" ", "-") for title in titles}


def test_what_is_no_job_has_no_name_there() -> None:
    with pytest.raises(AttributeError, match="'sort'"):
        _ = jobs.sort
