"""The Python client against the broker under test, under Trio and asyncio."""
