"""The conformance suite of providers: `python -m shoal.providers.conformance pkg:Class FILE`."""
