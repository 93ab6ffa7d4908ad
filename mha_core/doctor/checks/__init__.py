"""One file per check: `check(subject)` asks one question of a module and answers with a `CheckResult`."""
