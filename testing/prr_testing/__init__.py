"""Test-only parts: real engine servers that sample exactly what a test scripts. The wheel does not contain it."""
