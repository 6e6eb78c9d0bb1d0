"""One file per subcommand of `fnll`, each with a `main(argv) -> exit code`."""
