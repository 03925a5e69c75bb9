"""The command line: typer commands that turn options into settings and errors into exit codes."""
