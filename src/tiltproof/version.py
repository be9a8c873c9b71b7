"""The version, in one place. Between two releases it is the next one's with .devN, so that no run of such code passes for a release's."""

__version__ = "0.2.0.dev1"
