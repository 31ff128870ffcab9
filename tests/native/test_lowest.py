"""`make test-lowest` installs what pyproject.toml says is enough."""

from __future__ import annotations

from native.lowest import lowest


def test_each_requirement_at_its_lower_bound() -> None:
    project = {
        "dependencies": ["numpy>=1.26,<3", "tritonclient[http]>=2.54,<3"],
        "optional-dependencies": {
            "dev": ["types-PyYAML", "hypothesis>=6.130.12,<7"],
            "examples": ["setuptools>=77.0.3"],
            "compile": ["mypy>=1.14,<3"],
        },
    }
    assert list(lowest(project)) == [
        "numpy==1.26",
        "tritonclient[http]==2.54",
        "types-PyYAML",
        "hypothesis==6.130.12",
        "setuptools==77.0.3",
    ]
    assert len(project["dependencies"]) == 2
