"""`import holdfast`: lazy names, and the hello world that needs no other import."""

import subprocess
import sys

import holdfast as hf


def run_python(program: str) -> str:
    """Run a program in a new interpreter and return its output."""
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return ran.stdout


def test_public_names_are_found_and_listed() -> None:
    assert set(hf.__all__) <= set(dir(hf))
    assert all(getattr(hf, name) is not None for name in hf.__all__)


def test_import_without_spark_names_loads_neither_pyspark_nor_arrow() -> None:
    program = """
        import sys
        import holdfast as hf
        import holdfast.cli
        print(sorted({"pyspark", "pyarrow"} & sys.modules.keys()))
    """
    assert run_python("\n".join(line.strip() for line in program.splitlines())) == "[]\n"


def test_reading_a_state_loads_no_pyspark() -> None:
    assert (
        run_python("import sys, holdfast as hf; hf.read_state; print('pyspark' in sys.modules)")
        == "False\n"
    )
