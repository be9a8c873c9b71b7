"""The version, in one place. Between releases it is the next version with ``.devN``, so that no such run passes for a release's."""

__version__ = "0.2.0"
