"""The version of the package; pyproject.toml names the same, which a test checks."""

__version__ = "0.1.0"
