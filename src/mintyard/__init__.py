"""mintyard: the open control plane of an AI compute centre."""

__version__ = "0.1.0"
