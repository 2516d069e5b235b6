"""What a command says when it fails."""

import pytest
import typer

from antiphon.cli.output import reports_errors


@reports_errors
def _needs(module: str) -> None:
    raise ModuleNotFoundError(f"No module named {module!r}", name=module)


@pytest.mark.parametrize(
    ("module", "extra"), [("numpy", "spark"), ("pyspark.sql", "spark"), ("deltalake", "lake")]
)
def test_a_missing_library_names_the_extra_that_brings_it(
    module: str, extra: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as stopped:
        _needs(module)
    assert stopped.value.exit_code == 1
    name = module.partition(".")[0]
    assert capsys.readouterr().err == f"antiphon: {name} is not installed: pip install 'antiphon[{extra}]'\n"


def test_a_missing_module_of_our_own_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError):
        _needs("antiphon.gone")
